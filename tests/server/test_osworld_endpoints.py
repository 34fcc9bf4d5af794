"""OSWorld's in-VM protocol on an embedded desktop: the replies of each endpoint, errors included."""

from __future__ import annotations

import io

import pytest
from PIL import Image

PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "


def python(code: str) -> dict:
    """What OSWorld's client sends for an action."""
    return {"command": ["python", "-c", PREFIX + code], "shell": False}


async def test_the_screen_comes_as_png_with_its_size_and_the_pointer(client):
    done = await client.post("/execute", json=python("pyautogui.moveTo(100, 80)"))
    assert done.json() == {"status": "success", "output": "", "error": "", "returncode": 0}
    reply = await client.get("/screenshot")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "image/png")
    image = Image.open(io.BytesIO(reply.content)).convert("RGB")
    assert image.size == (320, 240)
    assert image.crop((96, 76, 112, 100)).getcolors() != image.crop((196, 76, 212, 100)).getcolors()
    assert (await client.post("/screen_size")).json() == {"width": 320, "height": 240}
    assert (await client.get("/cursor_position")).json() == [100, 80]
    platform = await client.get("/platform")
    assert (platform.text, platform.headers["content-type"]) == ("Linux", "text/html; charset=utf-8")


async def test_actions_are_performed_without_a_program_in_the_guest(client):
    await client.desktop.launch(["xterm", "-geometry", "40x12+0+0", "-e", "sh", "-c", "cat > typed.txt"])
    await client.desktop.wait_window("xterm")
    before = set(client.desktop.processes())
    for code in (
        "pyautogui.click(button='left', x=100, y=100, clicks=1)",
        "pyautogui.moveTo(50, 60, 0.73, pyautogui.easeInElastic)",
        "pyautogui.typewrite('a \"quoted\" word: é < ń\\n')",
        "pyautogui.hotkey('ctrl', 'd')",
    ):
        reply = await client.post("/execute", json=python(code))
        assert reply.json() == {"status": "success", "output": "", "error": "", "returncode": 0}, code
    assert set(client.desktop.processes()) <= before
    assert (await client.desktop.pull("typed.txt")).decode() == 'a "quoted" word: é < ń\n'


@pytest.mark.parametrize("path", ["/execute", "/setup/execute"])
async def test_commands_run_in_the_guest_with_their_output_and_code(client, path):
    home = (await client.post("/desktop_path")).json()["desktop_path"].removesuffix("/Desktop")
    said = {
        "a list": (["sh", "-c", "echo out; echo err >&2; exit 3"], False, ("out\n", "err\n", 3)),
        "a text that is split": ("echo 'two words' three", False, ("two words three\n", "", 0)),
        "a script": ("echo $HOME | tr a-z A-Z", True, (home.upper() + "\n", "", 0)),
        "a list for the shell": (["echo $0$1", "x", "y"], True, ("xy\n", "", 0)),
        "a word from the home": (["echo", "~/a", "b~/"], False, (f"{home}/a b~/\n", "", 0)),
        "line ends": (["printf", "a\\r\\nb\\rc"], False, ("a\nb\nc", "", 0)),
        "python": (["python", "-c", "print(6 * 7)"], False, ("42\n", "", 0)),
        "python in a script": ("python -c 'import platform; print(platform.system())'", True, ("Linux\n", "", 0)),
    }
    for name, (command, shell, (output, error, code)) in said.items():
        reply = await client.post(path, json={"command": command, "shell": shell})
        expected = {"status": "success", "output": output, "error": error, "returncode": code}
        assert (reply.status_code, reply.json()) == (200, expected), name


def _script_failed(output: str) -> dict:
    return {"status": "error", "output": output, "error": "", "returncode": -1}


ERRORS: list[tuple[str, dict, int, str | dict]] = [
    ("/setup/open_file", {"json": {"path": "nosuchthing"}}, 404, "Application/file not found: nosuchthing"),
    ("/setup/open_file", {"json": {"path": ""}}, 400, "Path not supplied!"),
    ("/setup/activate_window", {"json": {}}, 400, "window_name required"),
    ("/setup/close_window", {"json": {}}, 400, "window_name required"),
    ("/setup/change_wallpaper", {"json": {"path": "/a/none.png"}}, 404, "File not found: /a/none.png"),
    ("/setup/change_wallpaper", {"json": {"path": ""}}, 400, "Path not supplied!"),
    *(
        ("/setup/download_file", {"json": body}, 400, "Path or URL not supplied!")
        for body in ({}, {"url": "http://x"}, {"path": "x"})
    ),
    ("/window_size", {}, 400, {"error": "app_class_name is required"}),
    ("/run_python", {"json": {}}, 400, {"status": "error", "message": "Code not supplied!"}),
    ("/run_bash_script", {"json": {"script": ""}}, 400, _script_failed("Script not supplied!")),
    (
        "/run_bash_script",
        {"json": {"script": "true", "working_dir": "/nowhere"}},
        400,
        _script_failed("Working directory does not exist: /nowhere"),
    ),
    (
        "/run_bash_script",
        {"json": {"script": "sleep 5", "timeout": 0.3}},
        500,
        _script_failed("Script execution timed out after 0.3 seconds"),
    ),
    ("/file", {"data": {"file_path": "/home/user/nothing"}}, 404, {"error": "File not found"}),
    ("/file", {"data": {"path": "x"}}, 400, {"error": "file_path is required"}),
    ("/setup/upload", {"data": {"file_path": "~/x"}}, 400, {"error": "file_path and file_data are required"}),
    ("/list_directory", {"json": {"path": "/nothing"}}, 400, {"error": "The provided path is not a directory"}),
    ("/list_directory", {"json": {}}, 400, {"error": "Missing 'path' parameter"}),
    *(
        (path, {"json": {"command": command}}, 500, {"status": "error", "message": message})
        for path, command, message in (
            ("/setup/launch", "nosuchprogram --now", "[Errno 2] No such file or directory: 'nosuchprogram'"),
            ("/execute", ["nosuchprogram", "x"], "[Errno 2] No such file or directory: 'nosuchprogram'"),
            ("/execute", ["/etc/passwd"], "[Errno 13] Permission denied: '/etc/passwd'"),
            ("/execute", ["printf", "\\377"], "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
            ("/execute", ["echo", "a\0b"], "embedded null byte"),
            ("/execute", [], "list index out of range"),
        )
    ),
]


async def test_errors_have_the_status_and_text_of_the_original(client):
    for path, arguments, status, expected in ERRORS:
        reply = await client.post(path, **arguments)
        body = reply.json() if isinstance(expected, dict) else reply.text
        assert (reply.status_code, body) == (status, expected), (path, arguments)


async def test_files_go_in_and_come_out(client):
    data = bytes(range(256)) * 100
    for path in ("~/deep/folder/a b.bin", "$HOME/b.bin", "/tmp/outside/c.bin"):
        reply = await client.post("/setup/upload", data={"file_path": path}, files={"file_data": ("x", data)})
        assert (reply.status_code, reply.text) == (200, "File Uploaded: 25600 bytes"), reply.text
        back = await client.post("/file", data={"file_path": path})
        assert (back.status_code, back.content) == (200, data)
        assert back.headers["content-disposition"].startswith("attachment; filename=")


async def test_a_folder_is_listed_as_a_tree(client):
    await client.desktop.push("tree/one/two.txt", b"")
    await client.desktop.push("tree/three.txt", b"")
    home = await client.running.leases.find(client.lease["lease"]).guest.home()
    reply = await client.post("/list_directory", json={"path": f"{home}/tree"})
    tree = reply.json()["directory_tree"]
    assert (tree["type"], tree["name"]) == ("directory", "tree")
    assert sorted(tree["children"], key=lambda child: child["name"]) == [
        {"type": "directory", "name": "one", "children": [{"type": "file", "name": "two.txt"}]},
        {"type": "file", "name": "three.txt"},
    ]
