"""OSWorld's own `DesktopEnv` and controllers, from PyPI, on an embedded desktop: every method, errors included.

`scripts/environment osworld-controllers` makes the environment. One process of it does what these tests tell it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import sqlite3
import uuid
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from osworld_peer import Peer, Refused
from PIL import Image
from server_client import OWNER_KEY, bridge

from deskhand.desktop.applications.catalog import PROFILES
from deskhand.desktop.local.isolation import available_isolation
from deskhand.server.process import RunningServer


class Osworld:
    """The process with `desktop-env`, and the desktop that it drives."""

    def __init__(self, peer: Peer, running: RunningServer) -> None:
        self.tell, self.call, self.running = peer.tell, peer.call, running

    @property
    def desktop(self) -> Any:
        (held,) = self.running.book
        return held.desktop

    async def typing_into(self, name: str) -> None:
        await self.desktop.launch(["xterm", "-geometry", "50x12+0+0", "-e", "sh", "-c", f"cat > {name}"])
        await self.desktop.wait_window("xterm")
        await self.desktop.observe()


@pytest.fixture
async def osworld(peer: Peer, tmp_path: Path) -> AsyncIterator[Osworld]:
    async with bridge() as running:
        await peer.make(f"http://127.0.0.1:{running.port}", OWNER_KEY, tmp_path / "cache", (400, 300))
        yield Osworld(peer, running)
        await peer.call("close")
    assert OWNER_KEY not in peer.log.read_text()


async def test_the_controllers_questions_are_answered(osworld):
    call = osworld.call
    shot = Image.open(io.BytesIO(await call("controller.get_screenshot")))
    assert (shot.format, shot.size) == ("PNG", (400, 300))
    assert await call("render") == await call("controller.get_screenshot")
    assert await call("controller.get_vm_platform") == "Linux"
    assert await call("controller.get_vm_screen_size") == {"width": 400, "height": 300}
    desktop_path = await call("controller.get_vm_desktop_path")
    assert desktop_path.endswith("/Desktop")
    home = desktop_path.removesuffix("/Desktop")
    await osworld.desktop.push("Desktop/a.txt", b"x")
    assert await call("controller.get_vm_directory_tree", desktop_path) == {
        "type": "directory",
        "name": "Desktop",
        "children": [{"type": "file", "name": "a.txt"}],
    }
    assert await call("controller.get_file", f"{home}/Desktop/a.txt") == b"x"
    assert await call("controller.get_terminal_output") is None
    tree = await call("controller.get_accessibility_tree")
    assert tree is None or tree.startswith("<desktop-frame")
    await osworld.desktop.launch(["xterm", "-geometry", "20x5"])
    await osworld.desktop.wait_window("xterm")
    window = await call("controller.get_vm_window_size", "XTerm")
    assert set(window) == {"width", "height"}


async def test_the_controllers_failures_are_those_of_the_original(osworld):
    call = osworld.call
    assert await call("controller.get_file", "/home/user/nothing") is None
    assert await call("controller.get_vm_window_size", "nothing") is None
    assert await call("controller.get_vm_directory_tree", "/nothing") is None
    failed = await call("controller.execute_python_command", "raise SystemExit(3)")
    assert failed == {"status": "success", "output": "", "error": "", "returncode": 3}
    failed = await call("controller.execute_python_command", "nonsense(")
    assert failed["returncode"] == 1
    assert "SyntaxError" in failed["error"]


async def test_scripts_of_the_controller_run_in_the_guest(osworld):
    call = osworld.call
    assert await call("controller.run_python_script", "print(6 * 7)") == {
        "status": "success", "message": "42\n", "need_more": False, "output": "42\n", "error": "", "return_code": 0,
    }  # fmt: skip
    failed = await call("controller.run_python_script", "1 / 0")
    assert (failed["status"], failed["return_code"]) == ("error", 1)
    assert "ZeroDivisionError" in failed["error"]
    done = await call("controller.run_bash_script", "echo $((6 * 7)); echo no >&2; pwd", 20, "/tmp")
    assert done == {"status": "success", "output": "42\nno\n/tmp\n", "error": "", "returncode": 0}
    late = await call("controller.run_bash_script", "sleep 9", 0.2)
    assert (late["status"], late["returncode"]) == ("error", -1)


async def test_every_action_of_computer_13_is_performed(osworld):
    await osworld.tell(do="set", on="action_space", value="computer_13")
    await osworld.typing_into("typed.txt")
    actions = [
        {"action_type": "MOVE_TO", "parameters": {"x": 30, "y": 40}},
        {"action_type": "CLICK", "parameters": {}},
        {"action_type": "CLICK", "parameters": {"x": 60, "y": 70}},
        {"action_type": "CLICK", "parameters": {"button": "left", "x": 60, "y": 70, "num_clicks": 1}},
        {"action_type": "CLICK", "button": "left"},
        {"action_type": "MOUSE_DOWN", "parameters": {}},
        {"action_type": "MOUSE_UP", "parameters": {"button": "left"}},
        {"action_type": "DOUBLE_CLICK", "parameters": {"x": 60, "y": 70}},
        {"action_type": "DRAG_TO", "parameters": {"x": 80, "y": 90}},
        {"action_type": "SCROLL", "parameters": {"dx": 1, "dy": -2}},
        {"action_type": "TYPING", "parameters": {"text": 'it\'s "a" \\ <test>: ünï\n'}},
        {"action_type": "PRESS", "parameters": {"key": "a"}},
        {"action_type": "KEY_DOWN", "parameters": {"key": "shift"}},
        {"action_type": "PRESS", "parameters": {"key": "b"}},
        {"action_type": "KEY_UP", "parameters": {"key": "shift"}},
        {"action_type": "PRESS", "parameters": {"key": "enter"}},
        {"action_type": "HOTKEY", "parameters": {"keys": ["ctrl", "d"]}},
        {"action_type": "WAIT"},
        {"action_type": "DONE"},
    ]
    for action in actions:
        _, reward, _, _ = await osworld.call("step", action, pause=0)
        assert reward == 0
    assert (await osworld.desktop.pull("typed.txt")).decode() == 'it\'s "a" \\ <test>: ünï\naB\n'
    assert (await osworld.desktop.observe()).cursor == (80, 90)


async def test_a_step_of_pyautogui_acts_and_observes(osworld):
    await osworld.typing_into("typed.txt")
    seen, _, done, _ = await osworld.call("step", "pyautogui.typewrite('a < b')", pause=0)
    assert set(seen) == {"screenshot", "accessibility_tree", "terminal", "instruction"}
    assert Image.open(io.BytesIO(base64.b64decode(seen["screenshot"]["base64"]))).size == (400, 300)
    assert not done
    code = "for key in 'xy':\n    pyautogui.press(key)\npyautogui.press('enter'); pyautogui.hotkey('ctrl', 'd')"
    await osworld.call("step", "pass\n" + code, pause=0)
    assert await osworld.desktop.pull("typed.txt") == b"a < bxy\n"
    _, _, done, info = await osworld.call("step", "DONE", pause=0)
    assert (done, info) == (True, {"done": True})


async def test_a_task_is_set_up_stepped_and_judged_by_desktop_env_itself(osworld, tmp_path):
    url = "https://example.org/asset/note.txt"
    cache = tmp_path / "cache" / "a-task"
    cache.mkdir(parents=True)
    (cache / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_note.txt").write_text("from the cache\n")
    (tmp_path / "local.bin").write_bytes(bytes(range(256)))
    config = [
        ("download", {"files": [{"url": url, "path": "/home/user/note.txt"}]}),
        ("upload_file", {"files": [{"local_path": str(tmp_path / "local.bin"), "path": "/home/user/deep/local.bin"}]}),
        ("launch", {"command": ["xterm", "-title", "other"]}),
        ("execute", {"command": ["bash", "-c", "cat ~/note.txt"], "stdout": "said.txt"}),
        ("command", {"command": "echo {SCREEN_WIDTH_HALF} > ~/half.txt", "shell": True}),
        ("execute", {"command": "test -e ~/half.txt", "shell": True, "until": {"returncode": 0}}),
        ("execute_with_verification", {"command": ["true"], "verification": {"window_exists": "other"}}),
        ("open", {"path": "/home/user/note.txt"}),
        ("activate_window", {"window_name": "other"}),
        ("close_window", {"window_name": "other", "strict": True}),
        ("change_wallpaper", {"path": "/home/user/deep/local.bin"}),
        ("sleep", {"seconds": 0.1}),
    ]
    task = {
        "id": "a-task",
        "instruction": "Write a line.",
        "config": [{"type": name, "parameters": parameters} for name, parameters in config],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["cat", "/home/user/half.txt"]},
            "expected": {"type": "rule", "rules": {"expected": "200\n"}},
        },
    }
    first = next(iter(osworld.running.book)).id
    seen = await osworld.call("reset", task)
    assert seen["instruction"] == "Write a line."
    assert (cache / "said.txt").read_text() == "from the cache\n"
    assert await osworld.call("controller.get_file", "/home/user/deep/local.bin") == bytes(range(256))
    assert await osworld.call("controller.get_vm_wallpaper") == bytes(range(256))
    assert any("note.txt" in window.title for window in await osworld.desktop.windows())
    assert await osworld.call("evaluate") == 1.0
    await osworld.desktop.push("half.txt", b"wrong\n")
    assert await osworld.call("evaluate") == 0.0
    await osworld.call("reset", task | {"config": []})
    assert next(iter(osworld.running.book)).id != first
    await osworld.tell(do="set", on="controller.retry_interval", value=0.01)
    assert await osworld.call("controller.get_file", "/home/user/half.txt") is None
    await osworld.call("close")
    assert list(osworld.running.book) == []


async def test_a_recording_can_be_played(osworld, tmp_path):
    await osworld.call("controller.start_recording")
    await osworld.call("controller.execute_python_command", "pyautogui.moveTo(60, 60)")
    await asyncio.sleep(1.2)
    await osworld.call("controller.end_recording", str(tmp_path / "film.mp4"))
    (width, height, begin), (_, _, later) = await osworld.tell(do="play", path=str(tmp_path / "film.mp4"))
    assert (width, height, begin) == (400, 300, 0)
    assert 0 < later < 2
    await osworld.call("controller.end_recording", str(tmp_path / "none.mp4"))
    assert not (tmp_path / "none.mp4").exists()


async def test_setup_steps_that_fail_say_so(osworld):
    for step, parameters in (
        (
            "execute_with_verification",
            {"command": ["true"], "verification": {"window_exists": "no"}, "max_wait_time": 1},
        ),
        ("open", {"path": "/home/user/nothing.txt"}),
        ("launch", {"command": []}),
        ("tidy_desktop", {}),
    ):
        with pytest.raises(Refused, match="Setup step 1 failed"):
            await osworld.call("setup_controller.setup", [{"type": step, "parameters": parameters}])


async def test_the_browsers_history_is_written_where_the_controller_asks_for_it(osworld, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir(exist_ok=True)
    database = sqlite3.connect(cache / "history_new.sqlite")
    columns = "id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden"
    database.execute(f"CREATE TABLE urls ({columns})")
    database.execute("CREATE TABLE visits (url, visit_time, from_visit, transition, segment_id, visit_duration)")
    database.commit()
    database.close()
    item = {"url": "http://example.org/", "title": "Example", "visit_time_from_now_in_seconds": 60}
    await osworld.call("setup_controller._update_browse_history_setup", history=[item])
    (tmp_path / "back.sqlite").write_bytes(await osworld.desktop.pull(".config/google-chrome/Default/History"))
    back = sqlite3.connect(tmp_path / "back.sqlite")
    assert back.execute("SELECT url, title FROM urls").fetchall() == [("http://example.org/", "Example")]
    back.close()


@pytest.mark.skipif(
    not PROFILES["chromium"].installed, reason="not installed; as root: deskhand desktop install chromium"
)
@pytest.mark.skipif(
    available_isolation()[0] != "namespaces", reason="without namespaces guests have no network to call them in"
)
async def test_the_browsers_debugger_is_where_the_set_up_controller_calls_it(osworld):
    await osworld.desktop.push("page.html", b"<title>The page of the task</title>")
    config = [
        ("launch", {"command": ["google-chrome", "--remote-debugging-port=1337"]}),
        ("launch", {"command": ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]}),
        ("execute", {"command": "until socat -u OPEN:/dev/null TCP:127.0.0.1:1337; do sleep 0.1; done", "shell": True}),
        ("chrome_open_tabs", {"urls_to_open": ["file:///home/user/page.html"]}),
    ]
    await osworld.call(
        "setup_controller.setup", [{"type": name, "parameters": parameters} for name, parameters in config]
    )
    (window,) = await osworld.desktop.windows()
    assert window.title == "The page of the task - Chromium"
    profile = await osworld.desktop.listdir(".config/google-chrome/Default")
    assert "Preferences" in profile


@pytest.mark.skipif(not PROFILES["vlc"].installed, reason="not installed; as root: deskhand desktop install vlc")
@pytest.mark.skipif(
    available_isolation()[0] != "namespaces", reason="without namespaces guests have no network to call them in"
)
async def test_the_player_says_what_it_plays_where_the_getter_asks(osworld):
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setparams((1, 1, 8000, 0, "NONE", ""))
        file.writeframes(bytes(8000 * 600))
    await osworld.desktop.push("song.wav", sound.getvalue())
    await osworld.desktop.launch(["vlc", "--aout=adummy", "song.wav"])
    await osworld.desktop.wait_window("song.wav", timeout_s=60.0)
    result = {"type": "vlc_playing_info", "dest": "status.xml"}
    rules = {"type": "file_name", "file_name": "song.wav"}
    evaluator = {"func": "is_vlc_playing", "result": result, "expected": {"type": "rule", "rules": rules}}
    # The task is given to an environment that plays already: a reset would take another desktop.
    await osworld.call(
        "_set_task_info", {"id": "a-task", "instruction": "Play it.", "config": [], "evaluator": evaluator}
    )
    assert await osworld.call("evaluate") == 1.0
    await osworld.call(
        "_set_task_info",
        {
            "id": "b-task",
            "instruction": "Play it.",
            "config": [],
            "evaluator": evaluator | {"expected": {"type": "rule", "rules": rules | {"file_name": "no.wav"}}},
        },
    )
    assert await osworld.call("evaluate") == 0.0


async def test_a_desktop_of_another_lease_is_not_reached_without_its_key(osworld):
    (held,) = osworld.running.book
    reader, writer = await asyncio.open_connection("127.0.0.1", held.port)
    writer.write(b"GET /screenshot HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.close()
