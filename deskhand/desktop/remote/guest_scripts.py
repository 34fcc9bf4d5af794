"""Python programs for a guest's interpreter, generated from ops and commands.

Used by `osworld_desktop` and `waa_desktop`. `with_marker` makes a program run once: it creates a marker file under
its id before it acts and stores its result there. Sent again, it waits for the first run and reports the same result.
`action_script` performs ops with PyAutoGUI, and with SendInput or Xlib where that is not enough; `run_script` runs a
command.

Invariant: every text is embedded as a literal; none of it becomes code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from deskhand.actions.formats.limits import check_op
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import (
    Click,
    Drag,
    Key,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Op,
    Point,
    Scroll,
    Type,
    Wait,
    to_screen_px,
)
from deskhand.errors import AgentError

System = Literal["linux", "windows"]
_ID = re.compile(r"[0-9A-Za-z_-]{1,80}")
WHEEL_DELTA = 120
"""Windows' unit for one notch of the wheel."""
DRAG_S = 0.3
MAX_OUTPUT_BYTES = 16 << 20
"""Bytes of each output of a command; the rest is cut off."""

_MARKED = """\
import os, tempfile, time
_place = os.path.join(tempfile.gettempdir(), 'deskhand-')
_mark, _done, _said = _place + %(id)r, 0, ''
def _read():
    try:
        with open(_mark, encoding='ascii') as file:
            return file.read()
    except OSError:
        return ''
try:
    os.close(os.open(_mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    _first = True
except FileExistsError:
    _first = False
if _first:
    try:
%(body)s
        _end = 'done ' + _said
    except BaseException as _error:
        _end = 'failed ' + str(_done) + ' ' + ascii(type(_error).__name__ + ': ' + str(_error))
    with open(_mark + '.part', 'w', encoding='ascii') as file:
        file.write(_end)
    os.replace(_mark + '.part', _mark)
    for _old in %(old)r:
        try:
            os.remove(_place + _old)
        except OSError:
            pass
_until = time.monotonic() + %(wait)r
while not _read() and time.monotonic() < _until:
    time.sleep(0.02)
_end = _read() or 'unknown'
%(report)s
"""
REPORT_BY_PRINTING = "print('deskhand ' + _end)"
REPORT_BY_RAISING = "if not _end.startswith('done'):\n    raise RuntimeError('deskhand ' + _end)"
"""For servers that run the program in their own process and only report whether it raised."""

_LINUX_TEXT = """\
def _type(text):
    global _done
    try:
        from Xlib import X, display
        from Xlib.ext import xtest
    except ImportError:
        _done += 1
        pyautogui.write(text)
        return
    screen = display.Display()
    try:
        low = screen.display.info.min_keycode
        count = screen.display.info.max_keycode - low + 1
        table = screen.get_keyboard_mapping(low, count)
        free = [low + at for at, row in enumerate(table) if not any(row)]
        if not free:
            raise RuntimeError('no free key to type with')
        for sign in text:
            code = ord(sign)
            _done += 1
            screen.change_keyboard_mapping(free[-1], [[code if code < 256 else 0x1000000 + code] * len(table[0])])
            screen.sync()
            time.sleep(0.03)
            for kind in (X.KeyPress, X.KeyRelease):
                xtest.fake_input(screen, kind, free[-1])
            screen.sync()
            time.sleep(0.03)
        screen.change_keyboard_mapping(free[-1], [[0] * len(table[0])])
        screen.sync()
    finally:
        screen.close()
"""
_WINDOWS_TEXT = """\
import ctypes
class _Key(ctypes.Structure):
    _fields_ = [('vk', ctypes.c_uint16), ('scan', ctypes.c_uint16), ('flags', ctypes.c_uint32),
                ('time', ctypes.c_uint32), ('extra', ctypes.c_void_p)]
class _Any(ctypes.Union):
    _fields_ = [('key', _Key), ('room', ctypes.c_byte * (32 if ctypes.sizeof(ctypes.c_void_p) == 8 else 24))]
class _Input(ctypes.Structure):
    _fields_ = [('type', ctypes.c_uint32), ('any', _Any)]
def _type(text):
    global _done
    units = text.encode('utf-16-le')
    for at in range(0, len(units), 2):
        unit = units[at] | units[at + 1] << 8
        for flags in (4, 6):
            event = _Input(1, _Any(key=_Key(0, unit, flags, 0, None)))
            _done += 1
            if ctypes.windll.user32.SendInput(1, ctypes.byref(event), ctypes.sizeof(_Input)) != 1:
                _done -= 1
                raise RuntimeError('the input was blocked')
"""
_RELEASE = """\
import pyautogui
pyautogui.PAUSE, pyautogui.FAILSAFE = 0, False
for _key in %(keys)r:
    pyautogui.keyUp(_key)
%(query)s
for _button, _bit in %(buttons)r:
    if _pressed(_bit):
        pyautogui.mouseUp(button=_button)
if tuple(pyautogui.position()) != %(middle)r:
    pyautogui.moveTo(*%(middle)r)"""
_LINUX_PRESSED = """\
try:
    from Xlib import display
    _mask = display.Display().screen().root.query_pointer().mask
except ImportError:
    _mask = 0
def _pressed(bit):
    return _mask & bit"""
_WINDOWS_PRESSED = """\
import ctypes
def _pressed(code):
    return ctypes.windll.user32.GetAsyncKeyState(code) & 0x8000"""
_BUTTONS = {
    "linux": (("left", 1 << 8), ("middle", 1 << 9), ("right", 1 << 10)),
    "windows": (("left", 1), ("right", 2), ("middle", 4)),
}
"""Bits or codes that report a pressed button: X's mask, Windows' key codes. Releasing an unpressed button opens menus
on Windows."""
_NOT_STARTED = """\
except (FileNotFoundError, NotADirectoryError, PermissionError):
    _done = 0
    raise"""
"""What the start of a program raises if there is none; after anything else it may have run."""
_MODIFIERS = tuple(name + side for name in ("ctrl", "shift", "alt", "win") for side in ("", "left", "right"))
_WHEEL = "ctypes.windll.user32.mouse_event(0x1000, 0, 0, {amount}, 0)"
_PRESSED = {"\n": "enter", "\r": "enter", "\t": "tab", "\b": "backspace"}


def with_marker(body: str, action_id: str, *, wait_s: float, old: Sequence[str] = (), raises: bool = False) -> str:
    """Return a program that runs `body` once under `action_id` and removes markers `old`; repeats wait `wait_s`."""
    for name in (action_id, *old):
        if not _ID.fullmatch(name):
            raise AgentError("an action's id in a guest is 1 to 80 letters, digits, - and _")
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    report = REPORT_BY_RAISING if raises else REPORT_BY_PRINTING
    return _MARKED % {"id": action_id, "body": indented, "old": list(old), "wait": float(wait_s), "report": report}


def action_script(ops: Sequence[Op], width: int, height: int, system: System) -> str:
    """Return the body that performs `ops` on a screen of this size. Raises `AgentError` for the first impossible op."""
    lines = ["import pyautogui", "_pause, pyautogui.PAUSE, pyautogui.FAILSAFE = pyautogui.PAUSE, 0, False"]
    lines += (_WINDOWS_TEXT if system == "windows" else _LINUX_TEXT).splitlines()
    lines += ["getattr(pyautogui, 'failSafeCheck', int)()", "try:"]  # before anything counts as begun
    for op in ops:
        check_op(op)
        lines += [f"    {_count_input(line)}" for line in _lines(op, width, height, system)]
    return "\n".join([*lines, "    pass", "finally:", "    pyautogui.PAUSE = _pause"])


def release_script(width: int, height: int, system: System) -> str:
    """Return the body that releases modifiers and buttons and centers the pointer on a `width` x `height` screen."""
    query = _WINDOWS_PRESSED if system == "windows" else _LINUX_PRESSED
    middle = (width // 2, height // 2)
    return _RELEASE % {"keys": _MODIFIERS, "query": query, "buttons": _BUTTONS[system], "middle": middle}


def replace_marker_script(old: str | None, new: str) -> str:
    """Return the body that reports whether `old` exists in the home (None never exists), else creates `new`."""
    return f"""\
_home, _old = os.path.expanduser('~'), {old!r}
_there = _old is not None and os.path.exists(os.path.join(_home, _old))
if not _there:
    os.makedirs(os.path.dirname(os.path.join(_home, {new!r})), exist_ok=True)
    open(os.path.join(_home, {new!r}), 'w').close()
_said = 'true' if _there else 'false'"""


def _count_input(line: str) -> str:
    """Count an input when it begins: one that raises may have been sent in part."""
    call = line.lstrip()
    if not call.startswith(("pyautogui.", "ctypes.")):
        return line
    return f"{line[: len(line) - len(call)]}_done += 1; {call}"


def run_script(
    argv: Sequence[str], timeout_s: float, env: dict[str, str] | None, cwd: str | None, shell: bool = False
) -> str:
    """Return the body that runs a command and stores its output; after the timeout it is killed and its code is 124."""
    command = repr(" ".join(argv)) if shell else repr(list(argv))
    return f"""\
import base64, json, subprocess
_folder = os.path.join(os.path.expanduser('~'), os.path.expanduser({cwd or "~"!r}))
_done = 1
try:
    _run = subprocess.run({command}, shell={shell}, capture_output=True, stdin=subprocess.DEVNULL,
        timeout={float(timeout_s)!r}, env=dict(os.environ, **{dict(env or {})!r}), cwd=_folder)
    _found = [_run.returncode, _run.stdout, _run.stderr]
except subprocess.TimeoutExpired as _late:
    _found = [124, _late.stdout or b'', _late.stderr or b'']
{_NOT_STARTED}
_said = json.dumps([_found[0], *(base64.b64encode(each[:{MAX_OUTPUT_BYTES}]).decode() for each in _found[1:])])"""


def file_kind_script(path: str) -> str:
    """Return a program that prints what a path is: "file" that can be read, "special", "denied", "missing", or "failed"
    if the system cannot say.
    """
    return f"""\
import errno, os, stat
_path = os.path.expandvars(os.path.expanduser({path!r}))
try:
    _kind = 'file' if stat.S_ISREG(os.stat(_path).st_mode) else 'special'
    if _kind == 'file':
        open(_path, 'rb').close()
except (FileNotFoundError, NotADirectoryError):
    _kind = 'missing'
except PermissionError:
    _kind = 'denied'
except ValueError:
    _kind = 'special'
except OSError as _error:
    _kind = 'special' if _error.errno in (errno.ELOOP, errno.ENAMETOOLONG) else 'failed'
print('deskhand ' + _kind)"""


def launch_script(argv: Sequence[str], env: dict[str, str] | None, cwd: str | None) -> str:
    """Return the body that starts a program without waiting and reports its process id."""
    return f"""\
import subprocess
_folder = os.path.join(os.path.expanduser('~'), os.path.expanduser({cwd or "~"!r}))
_null = subprocess.DEVNULL
_done = 1
try:
    _run = subprocess.Popen({list(argv)!r}, stdin=_null, stdout=_null, stderr=_null,
        env=dict(os.environ, **{dict(env or {})!r}), cwd=_folder,
        **({{}} if os.name == 'nt' else {{'start_new_session': True}}))
{_NOT_STARTED}
_said = str(_run.pid)"""


def _lines(op: Op, width: int, height: int, system: System) -> Iterable[str]:
    def at(point: Point) -> str:
        return "{}, {}".format(*to_screen_px(point, width, height))

    def moved(point: Point | None) -> list[str]:
        return [f"pyautogui.moveTo({at(point)})"] if point is not None else []

    match op:
        case Move():
            return moved(op.point)
        case Click():
            pressed = f"pyautogui.click(clicks={op.count}, interval=0.05, button={_button(op.button)!r})"
            return [*moved(op.point), *_hold_modifiers(op.modifiers, [pressed])]
        case MouseDown() | MouseUp():
            name = "mouseDown" if isinstance(op, MouseDown) else "mouseUp"
            return [*moved(op.point), f"pyautogui.{name}(button={_button(op.button)!r})"]
        case Drag():
            button, way = _button(op.button), op.path[1:]
            steps = [f"pyautogui.moveTo({at(point)}, duration={DRAG_S / len(way):.3f})" for point in way]
            if len(way) > 2:
                steps = [line for point in way for line in (f"pyautogui.moveTo({at(point)})", "time.sleep(0.02)")]
            down, up = (f"pyautogui.{name}(button={button!r})" for name in ("mouseDown", "mouseUp"))
            return [*moved(op.path[0]), *_hold_modifiers(op.modifiers, [down, *steps, up])]
        case Scroll():
            return [*moved(op.point), *_hold_modifiers(op.modifiers, list(_scroll_lines(op, system)))]
        case Type():
            return _type_lines(op.text, system)
        case Key() if len(op.keys) == 1 and len(op.keys[0]) == 1 and not op.keys[0].isascii():
            return _type_lines(op.keys[0], system)
        case Key():
            return [*_key_lines("keyDown", op.keys), *_key_lines("keyUp", op.keys[::-1])]
        case KeyDown() | KeyUp():
            return [f"pyautogui.{'keyDown' if isinstance(op, KeyDown) else 'keyUp'}({_key(op.key)!r})"]
        case Wait():
            return [f"time.sleep({float(op.seconds)!r})"]
        case _:
            return []


def _scroll_lines(op: Scroll, system: System) -> Iterable[str]:
    unit = WHEEL_DELTA if system == "windows" else 1
    if op.dy:
        yield f"pyautogui.scroll({-op.dy * unit})"
    if op.dx:
        yield _WHEEL.format(amount=op.dx * unit) if system == "windows" else f"pyautogui.hscroll({op.dx})"


def _type_lines(text: str, system: System) -> list[str]:
    """Press characters that have a key; type the others as Unicode (Windows) or through a remapped key (Linux)."""
    lines: list[str] = []
    for piece in re.findall(r"[\n\r\t\b]|<+|[ -;=-~]+|[^\n\r\t\b -~]+", text.replace("\r\n", "\n")):
        if piece in _PRESSED:
            lines.append(f"pyautogui.press({_PRESSED[piece]!r})")
        elif any(sign < " " or "\x7f" <= sign < "\xa0" or "\ud800" <= sign <= "\udfff" for sign in piece):
            raise AgentError(f"{piece[:10]!a} has a character that cannot be typed")
        elif system == "windows" or not piece.isascii():
            lines.append(f"_type({piece!r})")
        elif piece[0] == "<":  # of PyAutoGUI's table this key gives ">" on most keyboards
            lines += ["pyautogui.hotkey('shift', ',')"] * len(piece)
        else:
            lines.append(f"pyautogui.write({piece!r})")
    return lines


def _hold_modifiers(modifiers: tuple[str, ...], lines: list[str]) -> list[str]:
    if not modifiers:
        return lines
    released = [f"    {line}" for line in _key_lines("keyUp", modifiers[::-1])]
    return [*_key_lines("keyDown", modifiers), "try:", *(f"    {line}" for line in lines), "finally:", *released]


def _key_lines(call: str, keys: Sequence[str]) -> list[str]:
    return [f"pyautogui.{call}({_key(key)!r})" for key in keys]


def _key(name: str) -> str:
    key = PYAUTOGUI.write(PYAUTOGUI.read(name))
    if len(key) == 1 and not key.isascii():
        raise AgentError(f"the key {key!r} cannot be held here; type it")
    return key


def _button(name: str) -> str:
    if name not in ("left", "middle", "right"):
        raise AgentError(f"the guest's mouse has no {name} button; it has left, middle and right")
    return name


def max_duration_s(op: Op) -> float:
    """Return the maximum duration of `op` in the guest."""
    match op:
        case Wait():
            return 1.0 + op.seconds
        case Type():
            return 2.0 + 0.1 * len(op.text)
        case Drag():
            return 2.0 + DRAG_S + 0.2 * len(op.path)
        case _:
            return 1.0
