"""Programs of a guest that use pyautogui beyond plain calls: they run in the guest, and the host acts for them."""

from __future__ import annotations

import asyncio

import pytest

from deskhand.server.pyautogui_rpc import MAX_REQUEST_BYTES


async def run_code(client, code: str) -> tuple[str, str, int]:
    reply = await client.post("/execute", json={"command": ["python", "-c", code], "shell": False})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    return body["output"], body["error"], body["returncode"]


async def typing_into(client, name: str) -> None:
    await client.desktop.launch(["xterm", "-geometry", "40x12+0+0", "-e", "sh", "-c", f"cat > {name}"])
    await client.desktop.wait_window("xterm")
    await client.desktop.observe()


async def test_loops_variables_and_queries_work(client):
    await typing_into(client, "typed.txt")
    code = """
import pyautogui, time
pyautogui.FAILSAFE = False
words = ["one", "zwei ä", "三"]
for index, word in enumerate(words):
    pyautogui.write(f"{index} {word}\\n", interval=0)
with pyautogui.hold("shift"):
    pyautogui.press(["a", "b"])
pyautogui.press("enter", presses=2)
pyautogui.hotkey("ctrl", "d")
pyautogui.moveTo(50, 60)
pyautogui.move(10, -5)
x, y = pyautogui.position()
print(x, y, pyautogui.size().width, pyautogui.onScreen(400, 5), pyautogui.easeInQuad(0.5))
"""
    assert await run_code(client, code) == ("60 55 320 False 0.5\n", "", 0)
    assert (await client.desktop.pull("typed.txt")).decode() == "0 one\n1 zwei ä\n2 三\nAB\n\n"


async def test_points_off_the_screen_are_clipped(client):
    code = "import pyautogui; pyautogui.moveTo(5000, -3); print(tuple(pyautogui.position()))"
    assert await run_code(client, code) == ("(319, 0)\n", "", 0)
    assert await run_code(client, "import pyautogui; pyautogui.click(1e4, 1e4)") == ("", "", 0)
    assert (await client.get("/cursor_position")).json() == [319, 239]


async def test_every_call_of_pyautogui_works(client):
    await client.desktop.launch(["xterm", "-geometry", "40x12+0+0", "-e", "cat"])
    await client.desktop.wait_window("xterm")
    calls = [
        "click(5, 6, 2, button='middle')", "click((7, 8))", "click(clicks=7, interval=0.01)", "leftClick(1, 2)",
        "rightClick(3, 4)", "middleClick()", "doubleClick(9, 9)", "tripleClick()", "press('esc')",
        "mouseDown(button='right')", "mouseUp(button='right')",
        "moveTo(None, 5)", "moveRel(1, 1)", "dragTo(30, 40, 0.2, button='left')", "dragRel(5, 5)",
        "drag(-5, 0, mouseDownUp=False)", "scroll(-130)", "vscroll(2, 10, 10)", "hscroll(3)", "keyDown('shift')",
        "keyUp('shift')", "keyDown('nosuchkey')", "typewrite(['a', 'left', 'enter'])", "write('x', interval=0.01)",
        "hotkey(['ctrl', 'u'])", "hotkey('ctrl', 'shift', 'x')", "sleep(0)", "resolution()", "isShiftCharacter('A')",
    ]  # fmt: skip
    code = "import pyautogui\n" + "".join(f"n = pyautogui.{call}\n" for call in calls) + "print('done')"
    assert await run_code(client, code) == ("done\n", "", 0)
    output, error, returncode = await run_code(client, "import pyautogui; pyautogui.screenshot()")
    assert (output, returncode) == ("", 1)
    assert "use the server's /screenshot" in error


async def test_invalid_requests_are_errors_and_run_nothing(client):
    asks = """
import os, json, sys, time
folder = os.environ["DESKHAND_RPC_DIR"]
def ask(data):
    name = os.path.join(folder, os.urandom(12).hex())
    with open(name + ".part", "wb") as file:
        file.write(data)
    os.rename(name + ".part", name + ".ask")
    for _ in range(1000):
        text = open(name + ".answer").read() if os.path.exists(name + ".answer") else ""
        if text.endswith("\\n"):
            return json.loads(text)["error"]
        time.sleep(0.01)
print(bool(ask(b"import os; os.system('touch /tmp/run')")))
print(bool(ask(b"\\xff")), bool(ask(b"pyautogui.write('" + b"x" * %d + b"')")), bool(ask(b"pyautogui.click(10**9, 1)")))
print(repr(ask(b"pyautogui.click(1, 1)")))
"""
    output, error, _ = await run_code(client, asks % MAX_REQUEST_BYTES)
    assert output == "True\nTrue True True\n''\n", error


async def test_a_guest_that_floods_the_host_is_ignored(client):
    flood = 'cd "$DESKHAND_RPC_DIR" && seq -f %024g 1 5000 | sed s/$/.ask/ | xargs touch'
    assert (await client.post("/execute", json={"command": flood, "shell": True})).json()["returncode"] == 0
    await asyncio.sleep(1.0)
    _, error, returncode = await run_code(
        client, "import pyautogui; pyautogui.REPLY_TIMEOUT_S = 0.5; pyautogui.position()"
    )
    assert returncode == 1
    assert error
    assert await run_code(client, "import pyautogui; pyautogui.moveTo(20, 30)") == ("", "", 0)


async def test_concurrent_programs_all_get_replies(client):
    code = "import pyautogui\nfor n in range(5): pyautogui.moveTo(n, n)\nprint(pyautogui.position().x)"
    answers = await asyncio.gather(*(run_code(client, code) for _ in range(4)))
    assert all(error == "" and returncode == 0 for _, error, returncode in answers)


@pytest.mark.parametrize(
    "trick", ["rm -rf ~/.cache/deskhand/asks", "cd ~/.cache/deskhand && rm -rf asks && ln -s / asks"]
)
async def test_a_guest_that_breaks_its_helpers_breaks_nothing_else(client, trick):
    await client.post("/execute", json={"command": "true"})
    await client.post("/execute", json={"command": trick, "shell": True})
    _, error, returncode = await run_code(
        client, "import pyautogui; pyautogui.REPLY_TIMEOUT_S = 0.3; pyautogui.position()"
    )
    assert returncode == 1
    assert error
    plain = "import pyautogui; pyautogui.moveTo(20, 30)"
    assert await run_code(client, plain) == ("", "", 0)
    assert (await client.get("/cursor_position")).json() == [20, 30]


async def test_concurrent_first_requests_are_performed_once(client):
    await typing_into(client, "typed.txt")
    code = "import pyautogui\nfor word in ['x', '\\n']: pyautogui.write(word)"
    assert await asyncio.gather(*(run_code(client, code) for _ in range(2))) == [("", "", 0)] * 2
    await run_code(client, "import pyautogui\nfor _ in [1]: pyautogui.hotkey('ctrl', 'd')")
    assert (await client.desktop.pull("typed.txt")).decode().count("x") == 2
