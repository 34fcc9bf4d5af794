"""pyautogui replacement for guest programs; never imported by the host.

Standard library only. A call writes one line of code to a file in the directory `DESKHAND_RPC_DIR`; the host
(`server.pyautogui_rpc`) performs it and replies in a file next to it when the screen has settled.

Signatures and the handling of odd arguments follow PyAutoGUI 0.9.54: coordinates are clipped to the screen, unknown
keys ignored. Differences: every Unicode character can be typed, pauses and tweens take no time, and there are no
screenshots and no message boxes.
"""

from __future__ import annotations

import json
import os
import time
from collections import namedtuple
from contextlib import contextmanager

REPLY_TIMEOUT_S = 60.0
PAUSE = 0.1
FAILSAFE = True
MINIMUM_DURATION = 0.1
MINIMUM_SLEEP = 0.05
LEFT, MIDDLE, RIGHT, PRIMARY, SECONDARY = "left", "middle", "right", "primary", "secondary"

Point = namedtuple("Point", "x y")
Size = namedtuple("Size", "width height")

KEYBOARD_KEYS = [
    "\t", "\n", "\r", *(chr(code) for code in range(32, 127)),
    "accept", "add", "alt", "altleft", "altright", "apps", "backspace", "browserback", "browserforward", "capslock",
    "ctrl", "ctrlleft", "ctrlright", "decimal", "del", "delete", "divide", "down", "end", "enter", "esc", "escape",
    *(f"f{number}" for number in range(1, 25)), "home", "insert", "left", *(f"num{digit}" for digit in range(10)),
    "numlock", "pagedown", "pageup", "pause", "pgdn", "pgup", "printscreen", "prntscrn", "prtsc", "prtscr", "return",
    "right", "scrolllock", "shift", "shiftleft", "shiftright", "space", "subtract", "tab", "up", "volumedown",
    "volumemute", "volumeup", "win", "winleft", "winright", "command", "option", "multiply",
]  # fmt: skip
KEY_NAMES = KEYBOARD_KEYS


class PyAutoGUIException(Exception):
    """The host did not perform the action."""


class FailSafeException(PyAutoGUIException):
    """Never raised: there is no physical mouse."""


class ImageNotFoundException(PyAutoGUIException):
    """Image search is not supported."""


def _request(code):
    """Let the host perform lines of code (none: only report); the reply has x, y, width and height in pixels."""
    folder = os.environ.get("DESKHAND_RPC_DIR")
    if not folder:
        raise PyAutoGUIException("pyautogui only works in programs started by the desktop server")
    name = os.path.join(folder, os.urandom(12).hex())
    with open(name + ".part", "w", encoding="utf-8") as file:
        file.write(code)
    os.rename(name + ".part", name + ".ask")
    deadline = time.monotonic() + REPLY_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with open(name + ".answer", encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            text = ""
        if text.endswith("\n"):
            os.unlink(name + ".ask")
            os.unlink(name + ".answer")
            answer = json.loads(text)
            if answer["error"]:
                raise PyAutoGUIException(answer["error"])
            return answer
        time.sleep(0.005)
    raise PyAutoGUIException("the host did not respond")


def _call(name, *arguments, **named):
    parts = [repr(argument) for argument in arguments]
    parts += [f"{key}={value!r}" for key, value in named.items() if value is not None]
    return _request(f"pyautogui.{name}({', '.join(parts)})")


def _pair(x, y):
    if isinstance(x, str):
        raise ImageNotFoundException("image search is not supported")
    return tuple(x)[:2] if isinstance(x, (tuple, list)) else (x, y)


def _position(x, y):
    """Return a position clipped to the screen; missing coordinates are the pointer's."""
    x, y = _pair(x, y)
    now = _request("")
    x, y = now["x"] if x is None else int(x), now["y"] if y is None else int(y)
    return max(0, min(x, now["width"] - 1)), max(0, min(y, now["height"] - 1))


def _at(x, y):
    """Return position arguments, none if none are given."""
    return {} if x is None and y is None else dict(zip("xy", _position(x, y), strict=True))


def position(x=None, y=None):
    now = _request("")
    return Point(now["x"] if x is None else int(x), now["y"] if y is None else int(y))


def size():
    now = _request("")
    return Size(now["width"], now["height"])


resolution = size


def onScreen(x, y=None):
    x, y = _pair(x, y)
    width, height = size()
    if x is None or y is None:
        raise TypeError("a point needs two numbers")
    return 0 <= x < width and 0 <= y < height


def moveTo(x=None, y=None, duration=0.0, tween=None, logScreenshot=False, _pause=True):
    _call("moveTo", *_position(x, y))


def moveRel(xOffset=None, yOffset=None, duration=0.0, tween=None, logScreenshot=False, _pause=True):
    dx, dy = _pair(xOffset, yOffset)
    now = position()
    moveTo(now.x + int(dx or 0), now.y + int(dy or 0))


move = moveRel


def click(
    x=None, y=None, clicks=1, interval=0.0, button=PRIMARY, duration=0.0, tween=None, logScreenshot=None, _pause=True
):
    at = _at(x, y)
    left = int(clicks)
    while left > 0:
        now = 1 if interval else min(left, 3)
        _call("click", clicks=now, button=button, **at)
        left -= now
        if left:
            time.sleep(interval)


def _clicker(button):
    def click_once(x=None, y=None, interval=0.0, duration=0.0, tween=None, logScreenshot=None, _pause=True):
        click(x, y, 1, interval, button)

    return click_once


leftClick, rightClick, middleClick = _clicker(LEFT), _clicker(RIGHT), _clicker(MIDDLE)


def _multiclicker(clicks):
    def click_often(
        x=None, y=None, interval=0.0, button=LEFT, duration=0.0, tween=None, logScreenshot=None, _pause=True
    ):
        click(x, y, clicks, interval, button)

    return click_often


doubleClick, tripleClick = _multiclicker(2), _multiclicker(3)


def mouseDown(x=None, y=None, button=PRIMARY, duration=0.0, tween=None, logScreenshot=None, _pause=True):
    _call("mouseDown", button=button, **_at(x, y))


def mouseUp(x=None, y=None, button=PRIMARY, duration=0.0, tween=None, logScreenshot=None, _pause=True):
    _call("mouseUp", button=button, **_at(x, y))


def dragTo(x=None, y=None, duration=0.0, tween=None, button=PRIMARY, logScreenshot=None, _pause=True, mouseDownUp=True):
    x, y = _position(x, y)
    if not mouseDownUp:
        _call("moveTo", x, y)
        return
    now = position()
    _request(f"pyautogui.moveTo({now.x}, {now.y})\npyautogui.dragTo({x}, {y}, button={button!r})")


def dragRel(
    xOffset=0, yOffset=0, duration=0.0, tween=None, button=PRIMARY, logScreenshot=None, _pause=True, mouseDownUp=True
):
    dx, dy = _pair(xOffset, yOffset)
    now = position()
    dragTo(now.x + int(dx or 0), now.y + int(dy or 0), button=button, mouseDownUp=mouseDownUp)


drag = dragRel


def _wheel(name):
    def turn(clicks, x=None, y=None, logScreenshot=None, _pause=True):
        at = _at(x, y)
        left = int(clicks)
        while left:
            now = max(-100, min(left, 100))
            _call(name, now, **at)
            left -= now

    return turn


scroll = vscroll = _wheel("vscroll")
hscroll = _wheel("hscroll")


def isValidKey(key):
    return isinstance(key, str) and (len(key) == 1 or key.lower() in KEYBOARD_KEYS)


def isShiftCharacter(character):
    return character.isupper() or character in set('~!@#$%^&*()_+{}|:"<>?')


def keyDown(key, logScreenshot=None, _pause=True):
    if isValidKey(key):
        _call("keyDown", key)


def keyUp(key, logScreenshot=None, _pause=True):
    if isValidKey(key):
        _call("keyUp", key)


def press(keys, presses=1, interval=0.0, logScreenshot=None, _pause=True):
    names = [keys] if isinstance(keys, str) else list(keys)
    for _ in range(int(presses)):
        for name in names:
            if isValidKey(name):
                _call("press", name)
            time.sleep(float(interval))


@contextmanager
def hold(keys, logScreenshot=None, _pause=True):
    names = [keys] if isinstance(keys, str) else list(keys)
    for name in names:
        keyDown(name)
    try:
        yield
    finally:
        for name in names:
            keyUp(name)


def typewrite(message, interval=0.0, logScreenshot=None, _pause=True):
    if not isinstance(message, str):
        press(message, interval=interval)
    elif interval:
        press(message and list(message), interval=interval)
    else:
        for start in range(0, len(message), 10_000):
            _call("write", message[start : start + 10_000])


write = typewrite


def hotkey(*args, interval=0.0, logScreenshot=None, _pause=True):
    names = list(args[0]) if len(args) == 1 and not isinstance(args[0], str) else list(args)
    names = [name for name in names if isValidKey(name)]
    if names:
        _call("hotkey", *names)


def sleep(seconds):
    time.sleep(seconds)


def countdown(seconds):
    for left in range(int(seconds), 0, -1):
        print(left, end=" ", flush=True)
        time.sleep(1)
    print()


def screenshot(*arguments, **named):
    raise PyAutoGUIException("screenshots are not available in the guest; use the server's /screenshot")


def __getattr__(name):
    """Return tweening functions, which have no effect here."""
    if name == "linear" or name.startswith("ease"):
        return lambda n: n
    raise AttributeError(f"module 'pyautogui' has no attribute {name!r}")
