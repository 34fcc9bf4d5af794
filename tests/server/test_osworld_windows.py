"""Windows, programs and settings in OSWorld's protocol."""

from __future__ import annotations

import asyncio
import time

from patience import limit


async def until(condition, timeout_s: float = 15.0):
    deadline = time.monotonic() + limit(timeout_s)
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_a_file_is_opened_by_its_kind_and_its_window_activated(client):
    await client.post("/setup/upload", data={"file_path": "~/note.txt"}, files={"file_data": ("x", b"hello")})
    reply = await client.post("/setup/open_file", json={"path": "~/note.txt"})
    assert (reply.status_code, reply.text) == (200, "File opened and window activated successfully")
    assert any("note.txt" in window.title for window in await client.desktop.windows())


async def test_a_window_is_launched_found_measured_activated_and_closed(client):
    reply = await client.post("/setup/launch", json={"command": ["xterm", "-title", "First One", "-geometry", "20x5"]})
    assert (reply.status_code, reply.text) == (200, "xterm -title First One -geometry 20x5 launched successfully")
    shell = await client.post("/setup/launch", json={"command": "xterm -title Second -e cat", "shell": True})
    assert shell.text == "xterm -title Second -e cat launched successfully"
    await client.desktop.wait_window("xterm", count=2)
    size = (await client.post("/window_size", data={"app_class_name": "xTerm"})).json()
    assert set(size) == {"width", "height"}
    assert size["width"] > 50
    assert (await client.post("/window_size", data={"app_class_name": "gimp"})).status_code == 500
    by_title, by_class = {"window_name": "First One", "strict": True}, {"window_name": "xterm.XTerm", "by_class": True}
    for body in ({"window_name": "first"}, by_title, by_class):
        activated = await client.post("/setup/activate_window", json=body)
        assert (activated.status_code, activated.text) == (200, "Window activated successfully")
    await client.post("/setup/close_window", json={"window_name": "first one", "strict": True})
    await client.post("/setup/close_window", json={"window_name": "nothing like it"})
    assert len(await client.desktop.windows()) == 2
    closed = await client.post("/setup/close_window", json={"window_name": "FIRST"})
    assert (closed.status_code, closed.text) == (200, "Window closed successfully.")

    async def one_left() -> bool:
        return [window.title for window in await client.desktop.windows()] == ["Second"]

    await until(one_left)


async def test_an_activated_window_has_the_keyboard(client):
    for name in ("alpha", "beta"):
        command = ["xterm", "-title", name, "-geometry", "20x5", "-e", "sh", "-c", f"cat > {name}.txt"]
        await client.post("/setup/launch", json={"command": command})
        await client.desktop.wait_window(name)
    await client.post("/setup/activate_window", json={"window_name": "alpha"})
    await client.desktop.observe()
    keys = "import pyautogui; pyautogui.write('here\\n'); pyautogui.hotkey('ctrl', 'd')"
    assert (await client.post("/execute", json={"command": ["python", "-c", keys]})).json()["returncode"] == 0
    assert await client.desktop.pull("alpha.txt") == b"here\n"
    assert await client.desktop.pull("beta.txt") == b""


async def test_the_wallpaper_can_be_set_and_read(client):
    await client.post("/setup/upload", data={"file_path": "~/paper.png"}, files={"file_data": ("x", b"a picture")})
    reply = await client.post("/setup/change_wallpaper", json={"path": "~/paper.png"})
    assert (reply.status_code, reply.text) == (200, "Wallpaper changed successfully")
    back = await client.post("/wallpaper")
    assert (back.status_code, back.headers["content-type"], back.content) == (200, "image/png", b"a picture")


async def test_a_download_uses_the_guest_network_which_is_off(client):
    body = {"url": "http://127.0.0.1:9/x", "path": "~/got.bin"}
    reply = await client.post("/setup/download_file", json=body)
    assert reply.status_code == 500
    assert reply.text.startswith("Failed to download http://127.0.0.1:9/x. No retries left. Error: ")
    local = await client.post("/setup/download_file", json={"url": "file:///etc/passwd", "path": "~/got.bin"})
    assert local.status_code == 500
    assert (await client.post("/file", data={"file_path": "~/got.bin"})).status_code == 404


async def test_scripts_have_the_reply_of_their_endpoint(client):
    done = await client.post("/run_python", json={"code": "import sys\nprint('out')\nprint('err', file=sys.stderr)"})
    assert done.json() == {
        "status": "success", "message": "out\n\nerr\n", "need_more": False, "output": "out\n", "error": "err\n",
        "return_code": 0,
    }  # fmt: skip
    failed = await client.post("/run_python", json={"code": "raise SystemExit(4)"})
    message = "Process exited with code 4"
    parts = {"status": "error", "message": message, "need_more": False, "output": "", "error": message}
    assert (failed.status_code, failed.json()) == (200, parts | {"return_code": 4})
    script = "echo out; echo err >&2; pwd; exit 7"
    done = await client.post("/run_bash_script", json={"script": script, "timeout": 10, "working_dir": "/tmp"})
    assert done.json() == {"status": "error", "output": "out\nerr\n/tmp\n", "error": "", "returncode": 7}
    assert (await client.post("/run_bash_script", json={"script": "[[ a == a ]]"})).json()["status"] == "success"


async def test_a_verification_passes_fails_or_is_omitted(client):
    for path in ("/execute_with_verification", "/setup/execute_with_verification"):
        plain = await client.post(path, json={"command": ["echo", "x"]})
        assert plain.json() == {"status": "success", "output": "x\n", "error": "", "returncode": 0}
    body = {"command": "xterm -title Verified &", "shell": True, "verification": {"window_exists": "verified"}}
    passed = (await client.post("/setup/execute_with_verification", json=body | {"check_interval": 0.1})).json()
    assert (passed["status"], passed["verification"]) == ("success", "passed")
    assert 0 <= passed["wait_time"] < 10
    body = {"command": ["true"], "verification": {"command_success": "test -e ~/never"}, "max_wait_time": 0.4}
    failed = await client.post("/execute_with_verification", json=body | {"check_interval": 0.1})
    command = {"status": "verification_failed", "output": "", "error": "", "returncode": 0}
    assert (failed.status_code, failed.json()) == (500, command | {"verification": "failed", "wait_time": 0.4})
