"""PyAutoGUI of `fake_guest`: it does what PyAutoGUI 0.9.54 does on the guest's system.

On Windows its wheel counts in units of 120 to a notch and its `hscroll` turns the upright wheel. `write` passes over
characters without a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fake_guest import FakeGuest

SHIFTED = '~!@#$%^&*()_+{}|:"<>?' + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
KEYS = {
    *"`1234567890-=[]\\;',./ \t\n\r\babcdefghijklmnopqrstuvwxyz", *SHIFTED, "enter", "return", "tab", "backspace",
    "esc", "escape", "delete", "insert", "home", "end", "pageup", "pagedown", "up", "down", "left", "right", "space",
    "capslock", "numlock", "pause", "scrolllock", "printscreen", "apps", "win", "winleft", "winright", "ctrl",
    "ctrlleft", "ctrlright", "shift", "shiftleft", "shiftright", "alt", "altleft", "altright", "multiply", "add",
    "subtract", "decimal", "divide", "volumeup", "volumedown", "volumemute", "browserback", "browserforward",
    *(f"f{number}" for number in range(1, 25)), *(f"num{digit}" for digit in range(10)),
}  # fmt: skip


class FailSafeException(Exception):
    """As PyAutoGUI's."""


class PyAutoGui:
    """PyAutoGUI's functions, as far as clients use them."""

    FailSafeException = FailSafeException

    def __init__(self, guest: FakeGuest) -> None:
        self._guest = guest
        self.PAUSE = 0.1

    @property
    def FAILSAFE(self) -> bool:
        return self._guest.failsafe

    @FAILSAFE.setter
    def FAILSAFE(self, value: bool) -> None:
        self._guest.failsafe = value

    def _check(self) -> None:
        width, height = self._guest.size
        if self._guest.failsafe and self._guest.pointer in [(x, y) for x in (0, width - 1) for y in (0, height - 1)]:
            raise FailSafeException(
                "PyAutoGUI fail-safe triggered from mouse moving to a corner of the screen. "
                "To disable this fail-safe, set pyautogui.FAILSAFE to False. DISABLING FAIL-SAFE IS NOT RECOMMENDED."
            )

    def failSafeCheck(self) -> None:
        self._check()

    def size(self) -> tuple[int, int]:
        return self._guest.size

    def position(self) -> tuple[int, int]:
        return self._guest.pointer

    def moveTo(self, x: Any = None, y: Any = None, duration: float = 0.0, tween: Any = None, **named: Any) -> None:
        self._check()
        if x is not None:
            width, height = self._guest.size
            self._guest.pointer = (min(max(int(x), 0), width - 1), min(max(int(y), 0), height - 1))
        self._guest.note("moved", *self._guest.pointer)

    def click(
        self, x: Any = None, y: Any = None, clicks: int = 1, interval: float = 0.0, button: str = "left", **named: Any
    ) -> None:
        self._check()
        if x is not None:
            self.moveTo(x, y)
        for _ in range(clicks):
            self._guest.note("clicked", button, *self._guest.pointer, tuple(self._guest.held))

    def doubleClick(self, x: Any = None, y: Any = None, **named: Any) -> None:
        self.click(x, y, clicks=2)

    def rightClick(self, x: Any = None, y: Any = None, **named: Any) -> None:
        self.click(x, y, button="right")

    def mouseDown(self, x: Any = None, y: Any = None, button: str = "left", **named: Any) -> None:
        self._check()
        if x is not None:
            self.moveTo(x, y)
        self._guest.buttons.add(button)
        self._guest.note("down", button, *self._guest.pointer)

    def mouseUp(self, x: Any = None, y: Any = None, button: str = "left", **named: Any) -> None:
        self._check()
        if x is not None:
            self.moveTo(x, y)
        self._guest.buttons.discard(button)
        self._guest.note("up", button, *self._guest.pointer)

    def dragTo(self, x: Any, y: Any, duration: float = 0.0, button: str = "left", **named: Any) -> None:
        self.mouseDown(button=button)
        self.moveTo(x, y)
        self.mouseUp(button=button)

    def scroll(self, clicks: int, x: Any = None, y: Any = None, **named: Any) -> None:
        self._check()
        self._guest.note("wheel", clicks / (120 if self._guest.system == "windows" else 1), *self._guest.pointer)

    vscroll = scroll

    def hscroll(self, clicks: int, x: Any = None, y: Any = None, **named: Any) -> None:
        if self._guest.system == "windows":  # PyAutoGUI's turns the upright wheel there
            self.scroll(clicks)
            return
        self._check()
        self._guest.note("sideways", clicks, *self._guest.pointer)

    def keyDown(self, key: str, **named: Any) -> None:
        self._check()
        if key.lower() in KEYS or key in KEYS:
            self._guest.held.append(key)
            self._guest.note("key down", key)

    def keyUp(self, key: str, **named: Any) -> None:
        self._check()
        if key in self._guest.held:
            self._guest.held.remove(key)
            self._guest.note("key up", key)

    def press(self, keys: Any, presses: int = 1, interval: float = 0.0, **named: Any) -> None:
        self._check()
        for key in [keys] if isinstance(keys, str) else keys:
            if len(key) > 1:
                key = key.lower()
            if key in KEYS:
                for _ in range(presses):
                    self._guest.note("pressed", key)
                    signs = {"enter": "\n", "return": "\n", "tab": "\t", "space": " "}
                    if len(key) == 1 or key in signs:
                        self._guest.put(signs.get(key, key))

    def hotkey(self, *keys: str, **named: Any) -> None:
        self._check()
        if keys == ("shift", ","):
            self._guest.put("<")
        self._guest.note("chord", *keys)

    def write(self, message: str, interval: float = 0.0, **named: Any) -> None:
        self._check()
        for sign in message:
            if sign in KEYS:
                self._guest.put(">" if sign == "<" and self._guest.system == "linux" else sign)
        self._guest.note("wrote", message)

    typewrite = write
