"""The local desktop on a real X server with real applications."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from desktops import ISOLATIONS, embedded, point_on
from patience import limit

from deskhand.actions.ops import (
    REL_1000,
    Click,
    Done,
    Drag,
    Key,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Point,
    Scroll,
    Type,
    Wait,
)
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import processes
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.x_connection import XConnection
from deskhand.errors import AgentError, ConfigError, DeliveryUnknown, InfrastructureError

SMALL = DesktopSpec("plain", 320, 240)


at = point_on(SMALL)


async def open_editor(desktop, *arguments):
    await desktop.launch(["l3afpad", *arguments])
    (window,) = await desktop.wait_window("l3afpad")
    window = await desktop.place_window(window, 10, 30, 300, 200)
    await desktop.observe()
    return window


async def in_terminal(desktop, script):
    """Runs a shell script in a terminal that fills the screen."""
    await desktop.launch(["xterm", "-geometry", "40x12+0+0", "-e", "sh", "-c", script])
    await desktop.wait_window("xterm")
    await desktop.observe()


@pytest.mark.parametrize("editor", ["mousepad", "l3afpad"])
async def test_typed_unicode_lands_in_a_file_saved_by_the_editor(desktop, editor):
    await desktop.push("note.txt", b"")
    await desktop.launch([editor, "note.txt"])
    await desktop.wait_window(editor)
    await desktop.observe()
    text = "héllo ąę Ж 你好 🎉 A~B{}|\nsecond\tline"
    await desktop.perform([Type(text), Key(("ctrl", "s"))], action_id="type")
    assert (await desktop.pull("note.txt")).decode().strip() == text


async def test_more_new_characters_than_spare_keys_all_arrive_in_order(desktop):
    await in_terminal(desktop, "cat > typed.txt")
    lines = ["".join(chr(0x0400 + row * 40 + column) for column in range(40)) for row in range(6)]
    await desktop.perform([Type("\n".join(lines) + "\n"), Key(("ctrl", "d"))], action_id="many")
    assert (await desktop.pull("typed.txt")).decode().splitlines() == lines


async def test_an_action_id_is_performed_once(desktop):
    await open_editor(desktop)
    first, again = await asyncio.gather(*(desktop.perform([Type("x")], action_id="same") for _ in range(2)))
    assert again is first
    await desktop.perform([Key(("ctrl", "a")), Key(("ctrl", "c"))], action_id="copy")
    assert await desktop.clipboard() == "x"


async def test_only_the_last_64_actions_are_cached():
    async with embedded(SMALL, settle_ms=1) as desktop:
        frames = [await desktop.perform([Done()], action_id=str(index)) for index in range(66)]
        assert await desktop.perform([Done()], action_id="65") is frames[65]
        assert (await desktop.perform([Done()], action_id="2")).sequence == frames[2].sequence
        assert (await desktop.perform([Done()], action_id="0")).sequence > frames[65].sequence


BAD_OPS = [
    Click(Point(1001, 10, REL_1000)),
    Click(at(5, 240)),
    Key(("ctrl", "nokey")),
    Key(()),
    Type("bell\x07"),
    Wait(31),
    Wait(float("nan")),
    Drag((at(1, 1),)),
    Scroll(0, 10_000),
    Click(at(1, 1), count=0),
    Click(at(1, 1), button="upper"),  # type: ignore[arg-type]
]


async def test_a_bad_op_performs_nothing_of_its_action(desktop):
    before = await desktop.perform([Move(at(100, 100))], action_id="before")
    for bad in BAD_OPS:
        with pytest.raises(AgentError):
            await desktop.perform([Click(Point(10, 10, REL_1000)), bad], action_id="bad")
    assert (await desktop.observe()).cursor == before.cursor == (100, 100)


@pytest.mark.parametrize(("name", "width", "height"), [("plain", 150, 192), ("plain", 1920, 1201), ("none", 320, 240)])
async def test_invalid_specs_are_config_errors(name, width, height):
    with pytest.raises(ConfigError):
        await embedded(DesktopSpec(name, width, height)).__aenter__()


async def test_unavailable_namespaces_are_a_config_error(monkeypatch):
    refusal = ("plain", "bubblewrap is not installed (apt-get install bubblewrap)")
    monkeypatch.setattr("deskhand.desktop.local.desktop.available_isolation", lambda: refusal)
    with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
        await embedded(SMALL, isolation_level="namespaces").__aenter__()
    async with embedded(SMALL) as fallback:
        assert fallback.isolation_level == "plain"


async def test_the_same_pixels_have_the_same_hash_and_a_change_shows_its_box(desktop):
    first = await desktop.perform([Move(at(50, 50))], action_id="a")
    second = await desktop.perform([Move(at(150, 100))], action_id="b")
    third = await desktop.perform([Move(at(50, 50))], action_id="c")
    assert first.content_hash == third.content_hash != second.content_hash
    left, top, right, bottom = second.changed_bbox
    assert (left, top) == (48, 48)  # the arrow's outline begins two pixels beside its tip
    assert right > 150
    assert bottom > 100
    assert (await desktop.observe()).changed_bbox is None


async def test_a_caret_in_the_home_template_does_not_blink(desktop):
    await open_editor(desktop)
    hashes = set()
    for _ in range(8):
        hashes.add((await desktop.observe()).content_hash)
        await asyncio.sleep(0.2)
    assert len(hashes) == 1


LATE = "for i in 1 2 3 4 5 6; do sleep 0.1; echo tick $i; done"
COMPUTING = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"


@pytest.mark.parametrize(("script", "settle_ms", "shortest_ms"), [(LATE, 200, 550), (COMPUTING, 20, 0)])
async def test_settling_waits_for_late_drawing_and_for_a_computing_guest(script, settle_ms, shortest_ms):
    async with embedded(SMALL, settle_ms=settle_ms) as desktop:
        await in_terminal(desktop, f"read line; {script}; echo done > finished; read line")
        frame = await desktop.perform([Type("\n")], action_id="go")
        assert frame.settle_reason == "quiet"
        assert frame.settle_ms >= shortest_ms
        assert await desktop.pull("finished") == b"done\n"


async def test_a_double_click_selects_a_word_and_two_separate_clicks_do_not(desktop):
    await desktop.launch(["mousepad"])
    (window,) = await desktop.wait_window("mousepad")
    window = await desktop.place_window(window, 10, 30, 300, 200)
    await desktop.perform([Type("alpha beta")], action_id="t")
    word = at(window.x + 15, window.y + 38)
    for index in range(2):
        await desktop.perform([Click(word)], action_id=f"single {index}")
    await desktop.perform([Type("1")], action_id="t2")
    await desktop.perform([Click(word, count=2), Type("2"), Key(("ctrl", "a")), Key(("ctrl", "c"))], action_id="double")
    assert await desktop.clipboard() == "2 beta"


async def test_a_double_click_opens_a_folder_in_the_file_manager_after_a_click_that_selected_it(desktop):
    await desktop.launch(["pcmanfm"])
    (window,) = await desktop.wait_window("pcmanfm")
    await desktop.place_window(window, 5, 25, 305, 210)
    await desktop.observe()
    folder = at(160, 120)
    await desktop.perform([Click(folder)], action_id="select")
    assert [window.title for window in await desktop.windows()] == ["user"]
    await desktop.perform([Click(folder, count=2)], action_id="open")
    assert [window.title for window in await desktop.windows()] == ["Desktop"]


async def test_a_drag_moves_a_window_by_its_title(desktop):
    window = await open_editor(desktop)
    title = at(window.x + 60, window.y - window.frame_top // 2)
    goal = at(window.x + 60 - 8, window.y - window.frame_top // 2 + 25)
    await desktop.perform([Drag((title, goal))], action_id="drag")
    (moved,) = await desktop.windows()
    assert (moved.x, moved.y) == (window.x - 8, window.y + 25)


async def test_mouse_down_and_up_are_separate_actions(desktop):
    window = await open_editor(desktop)
    title_y = window.y - window.frame_top // 2
    await desktop.perform([MouseDown(at(100, title_y))], action_id="down")
    await desktop.perform([Move(at(110, title_y + 10)), Move(at(130, title_y + 20))], action_id="move")
    await desktop.perform([MouseUp()], action_id="up")
    (moved,) = await desktop.windows()
    assert (moved.x, moved.y) == (window.x + 30, window.y + 20)


async def test_scrolling_scrolls_the_text_under_the_pointer(desktop):
    await desktop.push("long.txt", "\n".join(f"line {n}" for n in range(200)).encode())
    await open_editor(desktop, "long.txt")
    middle = at(150, 150)
    top = await desktop.perform([Move(middle)], action_id="there")
    down = await desktop.perform([Scroll(dy=5, point=middle)], action_id="down")
    up = await desktop.perform([Scroll(dy=-5, point=middle)], action_id="up")
    assert down.content_hash != top.content_hash == up.content_hash


async def test_a_held_key_types_once_and_modifiers_may_be_held_across_actions(desktop):
    await open_editor(desktop)
    await desktop.perform([KeyDown("a"), Wait(0.9), KeyUp("a")], action_id="held")
    await desktop.perform([KeyDown("ctrl")], action_id="ctrl")
    await desktop.perform([Key(("a",)), Key(("c",))], action_id="copy")
    await desktop.perform([KeyUp("ctrl")], action_id="up")
    assert await desktop.clipboard() == "a"


async def test_commands_report_code_output_and_timeouts(desktop):
    done = await desktop.run(["sh", "-c", "echo out; echo 'two\nlines' >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"two\nlines\n")
    done = await desktop.run(["sh", "-c", 'echo "$NAME"'], env={"NAME": 'it\'s a\n"test"'})
    assert done.stdout.decode() == 'it\'s a\n"test"\n'
    async with asyncio.timeout(limit(60)):
        assert (await desktop.run(["sleep", "infinity"], timeout_s=0.3)).returncode == 124
    assert (await desktop.run(["pgrep", "-x", "sleep"])).returncode == 1 or desktop.isolation_level == "plain"


@pytest.mark.parametrize("level", ISOLATIONS)
async def test_the_directory_of_a_command_is_relative_to_home(level):
    async with embedded(SMALL, isolation_level=level) as desktop:
        home = desktop._session.jail.guest_home
        for cwd, folder in ((None, home), ("Documents", f"{home}/Documents"), ("/usr/.", "/usr")):
            assert (await desktop.run(["pwd"], cwd=cwd)).stdout.decode() == f"{folder}\n"
            await desktop.launch(["sh", "-c", "pwd >~/made; mv ~/made ~/folder; sleep 9"], cwd=cwd)
            for _ in range(round(limit(200))):
                if "folder" in await desktop.listdir("."):
                    break
                await asyncio.sleep(0.02)
            assert await desktop.pull("folder") == f"{folder}\n".encode()
            await desktop.run(["rm", f"{home}/folder"])


async def test_a_missing_program_is_named(desktop):
    with pytest.raises(ConfigError, match="nosuchprogram: not installed"):
        await desktop.launch(["nosuchprogram"])


async def test_a_timeout_for_a_window_lists_the_open_windows(desktop):
    await open_editor(desktop)
    with pytest.raises(InfrastructureError, match=r"'galculator'.*l3afpad"):
        await desktop.wait_window("galculator", timeout_s=0.2)


async def test_reset_keeps_an_unused_desktop_and_rebuilds_a_used_one(desktop):
    first = await desktop.observe()
    before = desktop.processes()
    await desktop.reset(SMALL)
    assert desktop.processes() == before
    await desktop.push("mark", b"1")
    frame = await desktop.reset(SMALL)
    assert not set(desktop.processes()) & set(before)
    assert "mark" not in await desktop.listdir(".")
    assert frame.content_hash == first.content_hash


async def test_a_dead_x_server_is_an_infrastructure_error_and_the_action_stays_unknown(desktop):
    session = desktop._session
    processes.kill(session.x_server.process.pid)
    with pytest.raises(InfrastructureError):
        await desktop.perform([Type("x")], action_id="lost")
    with pytest.raises(DeliveryUnknown):
        await desktop.perform([Type("x")], action_id="lost")
    with pytest.raises(InfrastructureError):
        await desktop.observe()
    await desktop.reset(SMALL)
    assert (await desktop.observe()).size == (320, 240)


async def test_the_x_server_requires_its_cookie(desktop):
    server = desktop._session.x_server
    XConnection(server.name, server.cookie).close()
    with pytest.raises(InfrastructureError):
        XConnection(server.name, bytes(16))


async def test_a_frozen_x_server_is_detected(desktop, monkeypatch):
    monkeypatch.setattr("deskhand.desktop.local.desktop.REPLY_MARGIN_S", 0.5)
    processes.kill(desktop._session.x_server.process.pid, signal.SIGSTOP)
    async with asyncio.timeout(limit(60)):  # the server stays frozen
        with pytest.raises(InfrastructureError, match="did not respond"):
            await desktop.observe()


def waits(over: threading.Event) -> Iterator[str]:
    """The places where the main thread sleeps for 20 looks in a row, other than the event loop's own wait. A thread
    that waits for a processor is runnable and does not count."""
    last, looks = None, 0
    main = threading.main_thread()
    status = Path(f"/proc/self/task/{main.native_id}/stat")
    while not over.wait(0.005):
        frame = sys._current_frames()[main.ident or 0]
        place = frame.f_code.co_filename, frame.f_code.co_name, frame.f_lasti, id(frame)
        is_asleep = status.read_text().rpartition(")")[2].split()[0] in "SD" and place[1] != "select"
        looks = looks + 1 if is_asleep and place == last else 0
        last = place
        if looks == 20:
            yield "".join(traceback.format_stack(frame)[-3:])


async def test_the_event_loop_never_waits_for_a_desktop():
    over, found = threading.Event(), []
    watching = asyncio.create_task(asyncio.to_thread(lambda: found.extend(waits(over))))
    async with embedded(SMALL) as desktop:
        await open_editor(desktop)
        await desktop.perform([Type("abc"), Wait(0.3)], action_id="1")
        await desktop.run(["true"])
        await desktop.pull(".bashrc")
    over.set()
    await watching
    assert not found, found[0]


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_that_comes_as_a_call_ends_is_not_lost(turns):
    """Otherwise Ctrl-C leaves an episode running now and then, and the run waits for it for ever."""
    desktop = LocalDesktop()

    async def episode():
        await desktop._call(lambda: None, 1.0)
        await asyncio.sleep(60)

    task = asyncio.create_task(episode())
    await asyncio.sleep(0)
    time.sleep(0.05)  # noqa: ASYNC251 the worker ends while the loop looks away; its news then needs some turns of the loop
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    ended, _ = await asyncio.wait({task}, timeout=limit(5))
    task.cancel()
    assert ended
    assert task.cancelled()
    await desktop.close()
