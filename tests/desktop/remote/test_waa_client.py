"""A Windows machine of Windows Agent Arena as a desktop, over fakes of its two servers that answer as the originals
do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_waa import FakeEvaluate, FakeWaa
from server_client import LossyNetwork
from serving import on_a_port
from test_osworld_client import LOOKING, QUICK, SCREEN, TEXT, at

from deskhand.actions.ops import Click, Drag, Key, Move, Scroll, Type
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.remote.reset_hooks import QemuMonitor
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.waa_desktop import AccessibilityOptions, BaselineStore, WaaDesktop
from deskhand.desktop.remote.waa_server import WaaEvaluatorClient
from deskhand.errors import DeliveryUnknown, EvaluatorError, InfrastructureError


@asynccontextmanager
async def windows(
    folder: Path, network: LossyNetwork | None = None, **settings
) -> AsyncIterator[tuple[FakeWaa, WaaDesktop]]:
    fake = FakeWaa(folder)
    async with on_a_port(fake.app) as address:
        link = RetryingClient(address, timeouts=settings.pop("timeouts", QUICK), transport=network)
        desktop = WaaDesktop(link, **{"polling": LOOKING, "ready_s": 2.0, **settings})
        try:
            yield fake, desktop
        finally:
            fake.running.set()
            await desktop.close()


async def test_any_text_and_exact_gestures_reach_windows(tmp_path):
    async with windows(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        ops = [Click(at(50, 60), "left", 3), Drag((at(10, 20), at(30, 40), at(50, 20), at(70, 60))),
               Scroll(-2, 3, at(5, 6)),
               Type(TEXT), Key(("ctrl", "shift", "esc")), Key(("super", "d"))]  # fmt: skip
        before = len(fake.requests)
        frame = await desktop.perform(ops, action_id="a")
        assert [path for _, path in fake.requests[before:]] == ["/execute_windows", "/screenshot"], (
            "nothing is uploaded again"
        )
        assert frame.cursor == (5, 6)
        assert fake.guest.text == TEXT
        journal = [entry for entry in fake.guest.journal if entry[0] != "pressed"]
        assert journal == [
            ("moved", 50, 60), *[("clicked", "left", 50, 60, ())] * 3,
            ("moved", 10, 20), ("down", "left", 10, 20), ("moved", 30, 40), ("moved", 50, 20), ("moved", 70, 60),
            ("up", "left", 70, 60), ("moved", 5, 6), ("wheel", -3, 5, 6), ("sideways", -2, 5, 6),
            ("key down", "ctrl"), ("key down", "shift"), ("key down", "esc"), ("key up", "esc"), ("key up", "shift"),
            ("key up", "ctrl"), ("key down", "win"), ("key down", "d"), ("key up", "d"), ("key up", "win"),
        ]  # fmt: skip
        done = await desktop.run(["python", "-c", "print(6 * 7)"])
        assert (done.returncode, done.stdout) == (0, b"42\n")
        fake.guest.clipboard = "ü"
        assert await desktop.clipboard() == "ü"
        await desktop.push("C:\\Users\\Docker\\Documents\\a.txt", b"x")
        assert await desktop.pull("Documents/a.txt") == b"x"
        await desktop.launch(["notepad"])
        (window,) = await desktop.wait_window("notepad", timeout_s=2)
        await desktop.activate_window(window)
        await desktop.close_window(window)
        assert fake.guest.windows == ["Program Manager"]


async def test_nothing_is_done_twice_on_windows_when_replies_are_lost(tmp_path):
    network = LossyNetwork(lose_reply=0.25)
    async with windows(tmp_path, network) as (fake, desktop):
        await desktop.reset(SCREEN)
        for number in range(80):
            await desktop.perform([Move(at(number, 7)), Type("z€")], action_id=str(number))
        assert network.lost > 20
        assert [entry for entry in fake.guest.journal if entry[0] == "moved"] == [
            ("moved", number, 7) for number in range(80)
        ]
        assert fake.guest.text == "z€" * 80


async def test_a_pointer_in_a_corner_does_not_block_later_actions(tmp_path):
    async with windows(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        fake.guest.pointer = (0, 0)
        await desktop.perform([Type("a\n")], action_id="1")
        assert fake.guest.text == "a\n"
        modules, stubborn = fake.guest.modules, []

        def armed():  # a server that arms the fail-safe whatever a program says, until the pointer is moved away
            found = modules()
            kind = type(found["pyautogui"])
            always = property(lambda _: True, lambda _, value: stubborn.append(value))
            if fake.guest.pointer == (0, 0):
                own = {
                    "FAILSAFE": always,
                    "moveTo": unchecked,
                    **({} if checks_first else {"failSafeCheck": lambda _: None}),
                }
                found["pyautogui"].__class__ = type("Armed", (kind,), own)
                fake.guest.failsafe = True
            return found

        def unchecked(self, x=None, y=None, **named):
            fake.guest.pointer = (x, y)

        fake.guest.pointer, checks_first = (0, 0), False
        fake.guest.modules = armed
        with pytest.raises(DeliveryUnknown):
            await desktop.perform([Type("b\n")], action_id="2")
        assert fake.guest.text == "a\nb", "what was half done is not done again"
        fake.guest.pointer, checks_first = (0, 0), True
        await desktop.perform([Key(("enter",)), Type("c")], action_id="3")
        assert fake.guest.text == "a\nbc"
        assert ("key down", "enter") in fake.guest.journal
        assert stubborn


async def test_the_error_of_a_program_tells_whether_input_was_sent(tmp_path):
    async with windows(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        modules = fake.guest.modules

        def blocked():
            found = modules()
            found["ctypes"].windll.user32.SendInput = lambda *arguments: 0
            return found

        fake.guest.modules = blocked
        with pytest.raises(InfrastructureError, match="blocked") as first:
            await desktop.perform([Type("x")], action_id="1")
        assert not isinstance(first.value, DeliveryUnknown)
        with pytest.raises(DeliveryUnknown, match="after 1 inputs"):
            await desktop.perform([Move(at(3, 4)), Type("x")], action_id="2")


async def test_a_reset_that_leaves_windows_fails(tmp_path):
    async with windows(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        await desktop.launch(["notepad"])
        await desktop.push("Downloads/left.txt", b"x")
        await desktop.reset(SCREEN)
        assert fake.guest.windows == ["Program Manager"]
        assert await desktop.listdir("Downloads") == []
        fake.dirty = ["Do you want to save?"]
        await desktop.launch(["notepad"])
        with pytest.raises(InfrastructureError, match="Do you want to save"):
            await desktop.reset(SCREEN)
        fake.dirty = []
        await desktop.reset(SCREEN)


async def test_a_hanging_server_is_reset_by_the_qemu_monitor(tmp_path):
    said: list[str] = []
    times = RemoteTimeouts(connect_s=1, read_s=0.2, max_attempts=1, initial_backoff_s=0.01)
    async with windows(tmp_path, timeouts=times) as (fake, desktop):

        async def monitor(reader, writer):
            writer.write(b"QEMU 8.2 monitor\r\n(qemu) ")
            said.append((await reader.readline()).decode())
            fake.running.set()
            writer.write(b"\r\n(qemu) ")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(monitor, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            desktop._reset_hook = QemuMonitor("127.0.0.1", port).reset
            fake.running.clear()
            await desktop.reset(SCREEN)
        assert said == ["system_reset\n"]
        await desktop.launch(["notepad"])
        fake.running.clear()
        desktop._reset_hook = None
        with pytest.raises(InfrastructureError, match="/probe"):
            await desktop.reset(SCREEN)
        with pytest.raises(InfrastructureError, match="monitor"):
            await QemuMonitor("127.0.0.1", port).reset()


async def test_the_accessibility_tree_is_off_by_default_and_limited(tmp_path):
    async with windows(tmp_path) as (fake, desktop):
        await desktop.reset(SCREEN)
        assert await desktop.accessibility_tree() is None
        assert ("GET", "/accessibility") not in fake.requests
    async with windows(tmp_path, tree=AccessibilityOptions("uia", 0.3, 1000)) as (fake, desktop):
        await desktop.reset(SCREEN)
        assert "Program Manager" in (await desktop.accessibility_tree() or "")
        fake.guest.windows += ["w" * 2000]
        assert await desktop.accessibility_tree() is None
        fake.running.clear()
        assert await desktop.accessibility_tree() is None


async def test_a_failing_evaluator_is_an_error_not_a_zero(tmp_path):
    fake = FakeWaa(tmp_path)
    evaluate = FakeEvaluate(fake.guest, {"a": {"id": "a"}})
    rule = {"type": "rule", "rules": {"expected": "yes"}}
    result = {"type": "vm_file", "path": "C:\\Users\\Docker\\a.txt"}
    task = {"id": "a", "evaluator": {"func": "exact_match", "result": result, "expected": rule}}
    async with on_a_port(evaluate.app) as address:
        evaluator = WaaEvaluatorClient(RetryingClient(address, timeouts=QUICK))
        await evaluator.probe()
        assert await evaluator.task("a") == {"id": "a"}
        assert (await evaluator.evaluate(task))[0] == 0.0
        (fake.guest.home / "a.txt").write_text("yes")
        score, why = await evaluator.evaluate(task)
        assert (score, why) == (1.0, "found 'yes'")
        with pytest.raises(InfrastructureError, match="unknown step"):
            await evaluator.setup([{"type": "launch", "parameters": {"command": "notepad"}}, {"type": "nosuch"}])
        assert fake.guest.windows[-1] == "notepad"
        evaluate.broken = True
        with pytest.raises(EvaluatorError, match="500"):
            await evaluator.evaluate(task)
    with pytest.raises(EvaluatorError, match="no reply"):
        await evaluator.evaluate(task)
    await evaluator.client.close()


async def test_a_spec_of_another_size_is_rejected(tmp_path):
    async with windows(tmp_path) as (_, desktop):
        with pytest.raises(Exception, match="320x240"):
            await desktop.reset(DesktopSpec("plain", 1280, 720))


def test_the_baselines_of_machines_that_are_reset_at_once_are_all_kept(tmp_path):
    file = tmp_path / "machine_baselines.json"
    store = BaselineStore(file)
    addresses = [f"http://machine-{number}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda address: store.save(address, {"windows": [address] * 20}), addresses))
    again = BaselineStore(file)
    assert all(again.get(address) == {"windows": [address] * 20} for address in addresses)
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
