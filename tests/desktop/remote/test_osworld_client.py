"""A machine with OSWorld's server, as a desktop: a fake of that server, a network that loses things, and the bridge."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_osworld import FakeOsworld
from patience import limit
from PIL import Image
from server_client import LossyNetwork, bridge, leased
from serving import on_a_port
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from deskhand.actions.ops import Click, Drag, Key, KeyDown, KeyUp, Move, Point, Scroll, Type, screen_px
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import Desktop, DesktopSpec
from deskhand.desktop.factory import build_machine_pool
from deskhand.desktop.remote import guest_scripts, retrying_client
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop, ProgramFailed
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.errors import AgentError, ConfigError, DeliveryUnknown, FrameError, InfrastructureError

SCREEN = DesktopSpec("plain", 320, 240)
QUICK = RemoteTimeouts(connect_s=2, read_s=5, max_attempts=8, initial_backoff_s=0.005)
LOOKING = ScreenPolling(pause_s=0.0, max_screenshots=1)
TEXT = "plain <b> 'q\"\\n' ünï — 中文 🙂 \t2\nlast"


def at(x: float, y: float) -> Point:
    return Point(x, y, screen_px(320, 240))


@asynccontextmanager
async def machine(
    folder: Path, network: LossyNetwork | None = None, **settings
) -> AsyncIterator[tuple[FakeOsworld, OsworldDesktop]]:
    fake = FakeOsworld(folder)
    async with on_a_port(fake.app) as address:
        link = RetryingClient(address, timeouts=QUICK, transport=network)
        desktop = OsworldDesktop(link, **{"skip_reset": True, "polling": LOOKING, "ready_s": 20.0, **settings})
        try:
            yield fake, desktop
        finally:
            await desktop.close()


async def test_a_machine_implements_the_desktop_interface(tmp_path):
    async with machine(tmp_path) as (fake, desktop):
        assert isinstance(desktop, Desktop)
        first = await desktop.reset(SCREEN)
        assert first.size == (320, 240)
        assert first.cursor == (160, 120)
        ops = [Click(at(50, 60), "right", 2, ("ctrl",)), Drag((at(10, 20), at(30, 40))), Scroll(2, -3, at(5, 6)),
               Type(TEXT),
               Key(("ctrl", "s")), KeyDown("shift"), KeyUp("shift"), Move(at(100, 90))]  # fmt: skip
        frame = await desktop.perform(ops, action_id="a")
        assert frame.cursor == (100, 90)
        assert frame.changed_bbox is not None
        assert frame.content_hash != first.content_hash
        assert await desktop.perform(ops, action_id="a") is frame, "an action is known by its id"
        assert fake.guest.text == TEXT
        journal = [entry for entry in fake.guest.journal if entry[0] not in ("wrote", "pressed")]
        assert journal == [
            ("moved", 50, 60), ("key down", "ctrl"), *[("clicked", "right", 50, 60, ("ctrl",))] * 2, ("key up", "ctrl"),
            ("moved", 10, 20), ("down", "left", 10, 20), ("moved", 30, 40), ("up", "left", 30, 40),
            ("moved", 5, 6), ("wheel", 3, 5, 6), ("sideways", 2, 5, 6), ("chord", "shift", ","),
            ("key down", "ctrl"), ("key down", "s"), ("key up", "s"), ("key up", "ctrl"),
            ("key down", "shift"), ("key up", "shift"), ("moved", 100, 90),
        ]  # fmt: skip
        looks = [path for _, path in fake.requests if path == "/screenshot"]
        before = len(fake.requests)
        await desktop.observe()
        assert len(fake.requests) == before + 1, "a look is one call"
        assert len(looks) == 3  # ready, reset, perform
        await desktop.push("a/b.txt", b"\x00\xff")
        assert await desktop.pull("a/b.txt") == b"\x00\xff"
        await desktop.run(["sh", "-c", "touch \"$(printf '\\377')\""], cwd="a")
        assert await desktop.listdir("a") == ["\\xff", "b.txt"]
        for wrong in (desktop.pull("none"), desktop.listdir("none")):
            with pytest.raises(FileNotFoundError):
                await wrong
        with pytest.raises(IsADirectoryError):
            await desktop.pull("a")
        done = await desktop.run(["sh", "-c", "printf 'x\\377'; echo $A >&2; exit 3"], env={"A": "b"})
        assert (done.returncode, done.stdout, done.stderr) == (3, b"x\xff", b"b\n")
        assert (await desktop.run(["pwd"], cwd="Downloads")).stdout.decode() == f"{fake.guest.home}/Downloads\n"
        assert (await desktop.run(["sleep", "9"], timeout_s=0.2)).returncode == 124
        assert (await desktop.shell("echo one two")).stdout == b"one two\n"
        assert await desktop.launch(["gedit"]) > 0
        assert fake.guest.windows == ["gedit"]
        assert "gedit" in (await desktop.accessibility_tree() or "")


async def test_failures_of_the_server_name_the_endpoint(tmp_path):
    async with machine(tmp_path) as (fake, desktop):
        server = desktop.server
        await server.upload("/home/user/w.png", b"\x89PNG")
        await server.open_file("/home/user/w.png")
        await server.launch(["xterm"])
        assert fake.guest.windows == ["w.png", "xterm"]
        assert (await server.execute(["echo", "a"])).output == "a\n"
        with pytest.raises(InfrastructureError, match=r"/setup/open_file: \d\d\d"):
            await server.open_file("/none")


async def test_nothing_is_done_twice_when_replies_are_lost(tmp_path):
    network = LossyNetwork(lose_reply=0.2, gateway_error=0.1)
    async with machine(tmp_path, network) as (fake, desktop):
        await desktop.reset(SCREEN)
        for number in range(120):
            await desktop.perform([Move(at(number, 7)), Type("z")], action_id=str(number))
        assert network.lost > 40
        assert [entry for entry in fake.guest.journal if entry[0] == "moved"] == [
            ("moved", number, 7) for number in range(120)
        ]
        assert fake.guest.text == "z" * 120
        assert (await desktop.run(["sh", "-c", "echo >> ran; cat ran"])).stdout == b"\n"
        marks = list(fake.guest.tmp.iterdir())
        assert len(marks) <= 2, "old marks are removed"


async def test_what_raises_after_it_began_is_never_told_as_not_performed(tmp_path):
    """PyAutoGUI fails after the third letter."""
    async with machine(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        modules = fake.guest.modules

        def failing():
            found = modules()
            write = found["pyautogui"].write

            def half(text: str) -> None:
                write(text[:3])
                raise OSError("connection lost")

            found["pyautogui"].write = half
            return found

        fake.guest.modules = failing
        with pytest.raises(DeliveryUnknown, match="after 1 inputs were started"):
            await desktop.perform([Type("hello")], action_id="1")
        with pytest.raises(DeliveryUnknown):
            await desktop.perform([Type("hello")], action_id="1")
        assert fake.guest.text == "hel", "it is not typed again"
        fake.guest.modules = modules


@pytest.mark.parametrize("kind", ["run", "launch"])
def test_a_command_counts_as_begun_unless_it_was_not_started(tmp_path, kind: str):
    def result(command: str, then: str = "") -> str:
        if kind == "run":
            body = guest_scripts.run_script([command], 5, None, None)
        else:
            body = guest_scripts.launch_script([command], None, None)
        code = guest_scripts.with_marker(body.replace("_said =", f"{then}\n_said ="), secrets.token_hex(8), wait_s=1)
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.removeprefix("deskhand ").strip()

    assert result("/bin/true").startswith("done ")
    assert result("/no/such/program").startswith('failed 0 "FileNotFoundError')
    assert result("/usr/bin/true", "raise MemoryError()").startswith("failed 1 'MemoryError")


async def test_a_file_that_the_server_fails_at_is_an_outage_and_one_that_is_none_is_missing(tmp_path):
    """OSWorld's server replies 500 for both."""
    async with machine(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        await desktop.push("there.txt", b"x")
        await desktop.push("folder/x", b"x")
        await desktop.run(["ln", "-s", "loop", "loop"])
        fake.lacks_descriptors = True
        with pytest.raises(InfrastructureError, match="/file: 500"):
            await desktop.pull("there.txt")
        for path, kind in (("folder", IsADirectoryError), ("loop", IsADirectoryError), ("none", FileNotFoundError)):
            with pytest.raises(kind):
                await desktop.pull(path)
        fake.lacks_descriptors = False
        assert await desktop.pull("there.txt") == b"x"
        with pytest.raises(IsADirectoryError):
            await desktop.pull("folder")
        for path, kind in (("none", FileNotFoundError), ("there.txt", FileNotFoundError), ("loop", PermissionError)):
            with pytest.raises(kind):
                await desktop.listdir(path)
        failing = "import json\nraise OSError(24, 'Too many open files')"
        with pytest.raises(ProgramFailed, match="Too many"):
            await desktop._run_for(list[str], failing, 5.0)


async def test_an_unknown_outcome_is_reported(tmp_path):
    async with machine(tmp_path, LossyNetwork(lose_reply=1.0), ready_s=1.0) as (_, desktop):
        with pytest.raises(InfrastructureError):
            await desktop.reset(SCREEN)
    network = LossyNetwork()
    async with machine(tmp_path / "b", network) as (fake, desktop):
        await desktop.reset(SCREEN)
        network.lose_reply = 1.0
        with pytest.raises(DeliveryUnknown):
            await desktop.perform([Type("q")], action_id="1")
        assert fake.guest.text == "q"


async def test_an_action_repeated_during_itself_or_after_a_failed_screenshot_is_performed_once(tmp_path):
    async with machine(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        first, second = await asyncio.gather(*(desktop.perform([Type("q")], action_id="1") for _ in range(2)))
        assert fake.guest.text == "q"
        assert first.sequence == second.sequence
        whole = fake.guest.picture
        fake.guest.picture = lambda: b"<html>busy</html>"  # type: ignore[method-assign]
        with pytest.raises(FrameError):
            await desktop.perform([Type("w")], action_id="2")
        fake.guest.picture = whole  # type: ignore[method-assign]
        with pytest.raises(DeliveryUnknown):
            await desktop.perform([Type("w")], action_id="2")
        assert fake.guest.text == "qw"


async def test_an_action_without_a_screenshot_may_have_been_performed(tmp_path):
    async with machine(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        executed = desktop._act

        async def then_silent(body: str, longest_s: float) -> None:
            await executed(body, longest_s)
            await desktop.client.move("http://127.0.0.1:9")

        desktop._act = then_silent  # type: ignore[method-assign]
        with pytest.raises(DeliveryUnknown, match="performed"):
            await desktop.perform([Type("q")], action_id="1")
        assert fake.guest.text == "q"


async def test_an_unrequested_compressed_reply_is_an_outage(tmp_path):
    packed = gzip.compress(bytes(8 << 20))

    async def answer(request):
        body = packed if request.url.path == "/screenshot" else b"no gzip"
        return Response(body, headers={"content-encoding": "gzip"})

    async with on_a_port(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])) as address:
        plain = RetryingClient(address, timeouts=QUICK)
        for path in ("/screenshot", "/platform"):
            with pytest.raises(InfrastructureError, match="content-encoding"):
                await plain.send("GET", path, repeatable=True)
        await plain.close()


async def test_a_black_screen_is_an_outage_during_a_reset_and_later_a_frame(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (SCREEN.width, SCREEN.height), (3, 3, 3)).save(file, "PNG")
    async with machine(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        fake.guest.picture = file.getvalue  # type: ignore[method-assign]
        for frame in (await desktop.perform([Type("q")], action_id="1"), await desktop.observe()):
            assert frame.bgrx[:, :, :3].max() == 3
        with pytest.raises(InfrastructureError, match="the screen is black"):
            await desktop.reset(SCREEN)


async def test_an_incomplete_screenshot_never_becomes_a_frame(tmp_path):
    async with machine(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        whole = fake.guest.picture()
        fake.guest.picture = lambda: whole[: len(whole) // 2]  # type: ignore[method-assign]
        with pytest.raises(FrameError, match=r"truncated|checksum"):
            await desktop.observe()
        for cut in range(1, 30):  # a decoder has all pixels before the last checksums and the last chunk
            fake.guest.picture = lambda data=whole[:-cut]: data  # type: ignore[method-assign]
            with pytest.raises(FrameError, match=r"truncated|checksum"):
                await desktop.observe()
        empty = whole[:33] + whole[-12:]  # a header and an end without pixels
        fake.guest.picture = lambda: empty  # type: ignore[method-assign]
        with pytest.raises(FrameError, match="truncated"):
            await desktop.observe()
        fake.guest.picture = lambda: b"<html>busy</html>"  # type: ignore[method-assign]
        with pytest.raises(FrameError, match="not an image"):
            await desktop.observe()
        other = FakeOsworld(tmp_path / "other", (640, 480)).guest.picture()
        fake.guest.picture = lambda: other  # type: ignore[method-assign]
        with pytest.raises(FrameError, match="640x480"):
            await desktop.observe()
        answers = [b"", whole]
        fake.guest.picture = lambda: answers.pop(0)  # type: ignore[method-assign]
        assert (await desktop.observe()).size == (320, 240), "one that comes whole at the second look is a frame"


async def test_a_hostile_guest_server_neither_blocks_nor_exhausts_the_client(tmp_path, monkeypatch):
    monkeypatch.setattr(retrying_client, "MAX_REPLY_BYTES", 1 << 20)
    state = {"status": 429, "parts": 1}

    async def answer(request):
        async def parts():
            for _ in range(state["parts"]):
                yield bytes(65536)

        return StreamingResponse(parts(), status_code=state["status"])

    async with on_a_port(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])) as address:
        pool = build_machine_pool([address], "osworld", SCREEN, None, skip_reset=True, timeouts=QUICK)
        desktop = pool._make(address)
        with pytest.raises(InfrastructureError, match="quota exceeded"):
            await desktop.observe()
        state.update(status=200, parts=10_000)
        async with asyncio.timeout(limit(10)):
            with pytest.raises(InfrastructureError, match="exceeds"):
                await desktop.observe()
        await desktop.close()
        await pool.close()


async def test_impossible_actions_are_agent_errors_and_send_no_input(tmp_path):
    async with machine(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        untypable = [Type("\ud800")], [Type("\x00")]
        for ops in ([Type("a"), Click(at(400, 1))], [Key(("nokey",))], [Click(at(1, 1), "back")], *untypable):
            with pytest.raises(AgentError):
                await desktop.perform(ops, action_id=str(ops))
        assert fake.guest.journal == []


async def test_a_machine_without_a_reset_is_rejected_and_a_used_one_reset(tmp_path):
    async with machine(tmp_path, skip_reset=False) as (_, desktop):
        with pytest.raises(ConfigError, match="reset_command"):
            await desktop.reset(SCREEN)
    reverted = []

    async def revert() -> None:
        reverted.append(1)

    async with machine(tmp_path, skip_reset=False, reset_hook=revert) as (_, desktop):
        await desktop.reset(SCREEN)
        await desktop.reset(SCREEN)
        assert reverted == [1], "a machine that nobody has touched stays as it is"
        await desktop.push("a", b"")
        await desktop.reset(SCREEN)
        assert reverted == [1, 1]
        with pytest.raises(ConfigError, match="320x240"):
            await desktop.reset(DesktopSpec("plain", 400, 300))


async def test_the_client_drives_a_real_desktop_through_the_desktop_server():
    async with bridge() as running, leased(running) as client:
        link = RetryingClient(f"http://127.0.0.1:{client.lease['port']}", client.lease["key"])
        desktop = OsworldDesktop(link, skip_reset=True, polling=ScreenPolling(0.05, 2.0, 2))
        await desktop.reset(SCREEN)
        await client.desktop.launch(["xterm", "-geometry", "30x8+0+0", "-e", "sh", "-c", "cat > typed.txt"])
        await client.desktop.wait_window("xterm")
        await client.desktop.observe()
        await desktop.perform([Type("é 中 <ok>\n")], action_id="1")
        await desktop.perform([Key(("ctrl", "d"))], action_id="2")
        assert (await desktop.pull("typed.txt")).decode() == "é 中 <ok>\n"
        frame = await desktop.perform([Move(at(33, 44))], action_id="3")
        assert frame.cursor == (33, 44) == (await client.desktop.observe()).cursor
        assert (await desktop.run(["sh", "-c", "echo $((6*7))"])).stdout == b"42\n"
        await desktop.close()
