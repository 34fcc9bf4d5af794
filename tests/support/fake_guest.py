"""A machine that is not there: a screen, a pointer, a keyboard, windows and a folder of files, and a Python that sees
nothing else.

The fake servers of OSWorld and WAA stand on it. Programs are run in this process with modules of their own for what
touches the machine: `fake_pyautogui`, `ctypes.windll.user32` with SendInput and mouse_event, and `Xlib` with a keyboard
that can be changed. `journal` is what reached the machine, in order.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import os
import subprocess
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fake_pyautogui import PyAutoGui
from PIL import Image, ImageDraw

WHEEL, HWHEEL = 0x0800, 0x1000


class FakeGuest:
    """`folder` holds the home (`home`) and the temporary files (`tmp`). `system` is "linux" or "windows"."""

    def __init__(self, folder: Path, system: str = "linux", size: tuple[int, int] = (320, 240)) -> None:
        self.system, self.size = system, size
        self.home, self.tmp = folder / "home", folder / "tmp"
        for each in (self.home / "Desktop", self.home / "Downloads", self.home / "Documents", self.tmp):
            each.mkdir(parents=True, exist_ok=True)
        self.pointer = (size[0] // 2, size[1] // 2)
        self.buttons: set[str] = set()
        self.held: list[str] = []
        self.text = ""
        self.journal: list[tuple[Any, ...]] = []
        self.windows: list[str] = []
        self.clipboard = ""
        self.failsafe = True
        self.commands: dict[str, Callable[[], str]] = {}
        """What the shell knows besides Python: command line to its output."""
        self.acted = 0
        """Programs that performed something to their end."""
        self._lock = threading.RLock()
        self._pictures: dict[Any, bytes] = {}
        self._keyboard: dict[int, int] = {}

    def note(self, *entry: Any) -> None:
        self.journal.append(entry)
        if len(self.journal) > 200_000:
            del self.journal[:100_000]

    def put(self, sign: str) -> None:
        """A character arrives in whatever has the keyboard."""
        self.text = (self.text + sign)[-100_000:]

    # -- the screen

    def picture(self) -> bytes:
        """PNG: a box for the pointer and one for how much was typed."""
        state = (self.pointer, len(self.text) % 64, len(self.windows), tuple(sorted(self.buttons)))
        if state not in self._pictures:
            image = Image.new("RGB", self.size, (40, 60, 90))
            draw = ImageDraw.Draw(image)
            draw.rectangle((4, 4, 5 + state[1] * 3, 12), fill=(240, 240, 240))
            draw.rectangle((4, 20, 5 + state[2] * 9, 28), fill=(200, 120, 40))
            x, y = self.pointer
            draw.polygon(
                [(x, y), (x + 8, y + 4), (x + 4, y + 8)], fill=(255, 255, 255) if not self.buttons else (255, 0, 0)
            )
            data = io.BytesIO()
            image.save(data, "PNG", compress_level=1)
            if len(self._pictures) > 64:
                self._pictures.clear()
            self._pictures[state] = data.getvalue()
        return self._pictures[state]

    # -- the Python of the guest

    def python(self, code: str, names: dict[str, Any] | None = None) -> tuple[int, str, str]:
        """Run a program: its code, output and complaints. What it raises is in the complaints, as Python prints it."""
        out = io.StringIO()
        try:
            with self._lock:
                self.execute(code, names, out)
            return 0, out.getvalue(), ""
        except SystemExit as error:
            return (error.code if isinstance(error.code, int) else 1 if error.code else 0), out.getvalue(), ""
        except BaseException:
            return 1, out.getvalue(), traceback.format_exc()

    def execute(self, code: str, names: dict[str, Any] | None = None, out: io.StringIO | None = None) -> None:
        """As `exec` in the guest."""
        modules = self.modules()

        def load(name: str, *arguments: Any, **named: Any) -> Any:
            top = name.partition(".")[0]
            if top in modules:
                return modules[top]
            if top in ABSENT:
                raise ModuleNotFoundError(f"No module named {top!r}")
            return builtins.__import__(name, *arguments, **named)

        def say(*words: Any, sep: str = " ", end: str = "\n", **named: Any) -> None:
            if out is not None:
                out.write(sep.join(map(str, words)) + end)

        own = dict(vars(builtins)) | {"__import__": load, "print": say, "open": self.open}
        exec(compile(code, "<string>", "exec"), {"__builtins__": own, "__name__": "__main__", **(names or {})})

    def open(self, path: Any, *arguments: Any, **named: Any) -> Any:
        return open(self.path(str(path)) if isinstance(path, str) else path, *arguments, **named)

    def path(self, text: str) -> str:
        """A path of the guest as one of the host: homes of both systems are the same folder."""
        for head in ("C:\\Users\\Docker", "/home/user", "~"):
            if text == head or text.startswith((head + "\\", head + "/")):
                return str(self.home) + text[len(head) :].replace("\\", "/")
        if text.startswith(str(self.home.parent)):
            return text
        return str(self.home / "other" / text.lstrip("/").replace("\\", "/").replace(":", ""))

    def modules(self) -> dict[str, Any]:
        path = Module(os.path, expanduser=lambda text: self.path(text) if text.startswith(("~", "/", "C:")) else text)
        found: dict[str, Any] = {
            "os": Module(os, path=path, name="nt" if self.system == "windows" else "posix"),
            "tempfile": Module(tempfile, gettempdir=lambda: str(self.tmp)),
            "pyautogui": PyAutoGui(self),
            "pyperclip": types.SimpleNamespace(
                paste=lambda: self.clipboard, copy=lambda text: setattr(self, "clipboard", text)
            ),
            "subprocess": Module(subprocess, run=self.run, Popen=self.start),
        }
        if self.system == "windows":
            found["ctypes"] = Module(ctypes, windll=types.SimpleNamespace(user32=User32(self)))
            found["pygetwindow"] = types.SimpleNamespace(
                getAllWindows=lambda: [FakeWindow(self, name) for name in self.windows]
            )
        else:
            found["Xlib"] = types.SimpleNamespace(
                X=types.SimpleNamespace(KeyPress=2, KeyRelease=3),
                display=types.SimpleNamespace(Display=lambda: Keyboard(self)),
                ext=types.SimpleNamespace(xtest=types.SimpleNamespace(fake_input=self.x_input)),
            )
            found["Xlib"].xtest = found["Xlib"].ext.xtest
        return found

    def x_input(self, display: Any, kind: int, keycode: int) -> None:
        code = self._keyboard.get(keycode, 0)
        if kind == 2 and code:
            self.put(chr(code if code < 0x1000000 else code - 0x1000000))

    # -- programs

    def run(
        self, command: Any, shell: bool = False, timeout: float | None = None, cwd: str | None = None, **named: Any
    ) -> Any:
        """`subprocess.run`: Python runs in here, known command lines say what they say, the rest is the host's own."""
        if not shell and command[0] in ("python", "python3", "/usr/bin/python3") and command[1:2] == ["-c"]:
            code, out, err = self.python(command[2])
            return types.SimpleNamespace(returncode=code, stdout=out.encode(), stderr=err.encode())
        line = command if isinstance(command, str) else " ".join(command)
        if line in self.commands:
            return types.SimpleNamespace(returncode=0, stdout=self.commands[line]().encode(), stderr=b"")
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home)} | {
            name: value for name, value in (named.get("env") or {}).items() if name not in ("PATH", "HOME")
        }
        folder = self.path(cwd) if cwd else str(self.home)
        return subprocess.run(
            command, shell=shell, timeout=timeout, cwd=folder, capture_output=True, env=environment, check=False
        )

    def start(self, command: Any, **named: Any) -> Any:
        """`subprocess.Popen`: a window opens."""
        line = command if isinstance(command, str) else " ".join(command)
        self.note("started", line)
        self.windows.append(line)
        return types.SimpleNamespace(pid=1000 + len(self.journal))

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        before = len(self.journal)
        yield
        self.acted += len(self.journal) > before


ABSENT = frozenset({"Xlib", "pygetwindow", "pyperclip"})
"""Modules that only one of the systems has."""


class Module:
    """A module with some names replaced."""

    def __init__(self, real: Any, **own: Any) -> None:
        self.__dict__.update(own)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class FakeWindow:
    def __init__(self, guest: FakeGuest, title: str) -> None:
        self._guest, self.title, self.visible = guest, title, True
        self._hWnd = 1 + guest.windows.index(title)
        self.left, self.top, self.width, self.height = 10, 10, 100, 80

    def close(self) -> None:
        self._guest.windows.remove(self.title)

    def activate(self) -> None:
        self._guest.note("activated", self.title)

    restore = activate


class User32:
    """What code calls of Windows' user32."""

    def __init__(self, guest: FakeGuest) -> None:
        self._guest = guest
        self._half = b""

    def SendInput(self, count: int, events: Any, size: int) -> int:
        assert (count, size) == (1, 28 if ctypes.sizeof(ctypes.c_void_p) == 4 else 40), (
            "INPUT has that size, or Windows refuses it"
        )
        data = bytes(events._obj)
        kind, at = int.from_bytes(data[:4], "little"), ctypes.sizeof(ctypes.c_void_p)
        scan, flags = int.from_bytes(data[at + 2 : at + 4], "little"), int.from_bytes(data[at + 4 : at + 8], "little")
        assert kind == 1
        assert flags & 4
        if not flags & 2:
            self._half += scan.to_bytes(2, "little")
            with contextlib.suppress(UnicodeDecodeError):
                self._guest.put(self._half.decode("utf-16-le"))
                self._half = b""
        return 1

    def GetAsyncKeyState(self, code: int) -> int:
        return -0x8000 if {1: "left", 2: "right", 4: "middle"}[code] in self._guest.buttons else 0

    def mouse_event(self, flags: int, x: int, y: int, data: int, extra: int) -> None:
        assert flags in (WHEEL, HWHEEL)
        self._guest.note("sideways" if flags == HWHEEL else "wheel", data / 120, *self._guest.pointer)


class Keyboard:
    """What code calls of python-xlib's display."""

    def __init__(self, guest: FakeGuest) -> None:
        self._keys = guest._keyboard
        self._guest = guest
        self.display = types.SimpleNamespace(info=types.SimpleNamespace(min_keycode=8, max_keycode=255))

    def screen(self) -> Any:
        mask = sum(
            bit for button, bit in (("left", 256), ("middle", 512), ("right", 1024)) if button in self._guest.buttons
        )
        return types.SimpleNamespace(root=types.SimpleNamespace(query_pointer=lambda: types.SimpleNamespace(mask=mask)))

    def get_keyboard_mapping(self, first: int, count: int) -> list[list[int]]:
        return [[self._keys.get(code, 0 if code > 250 else 97)] * 2 for code in range(first, first + count)]

    def change_keyboard_mapping(self, first: int, rows: list[list[int]]) -> None:
        for at, row in enumerate(rows):
            self._keys[first + at] = row[0]

    def sync(self) -> None:
        return

    close = sync
