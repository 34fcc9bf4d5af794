"""The host's hand: pointer and keyboard by the XTEST extension. Invariant: what is pressed for an op is released by the end of it.

Characters that the keyboard does not have get a spare key of their own, so every Unicode character can be typed.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from deskhand.actions.keys import character_keysym, keysym
from deskhand.desktop.embedded.connection import Connection

_KEY_PRESS, _KEY_RELEASE, _BUTTON_PRESS, _BUTTON_RELEASE, _MOTION = 2, 3, 4, 5, 6
BUTTONS = {"left": 1, "middle": 2, "right": 3, "back": 8, "forward": 9}
_SCROLL_UP, _SCROLL_DOWN, _SCROLL_LEFT, _SCROLL_RIGHT = 4, 5, 6, 7
_SHIFT = 0xFFE1
DRAG_STEP_PX = 12
DRAG_STEP_S = 0.004


class Hand:
    """Sends input; `settle` is called where a guest must catch up before the next input makes sense."""

    def __init__(self, connection: Connection, settle: Callable[[], None]) -> None:
        self._connection = connection
        self._settle = settle
        self._keys: dict[int, tuple[int, bool]] = {}
        setup = connection.setup
        first, count = setup.min_keycode, setup.max_keycode - setup.min_keycode + 1
        reply = connection.core.GetKeyboardMapping(first, count).reply()
        self._per_code = reply.keysyms_per_keycode
        symbols = list(reply.keysyms)
        spare: list[int] = []
        for code in range(count):
            row = symbols[code * self._per_code : (code + 1) * self._per_code]
            if not any(row):
                spare.append(first + code)
                continue
            for level in (0, 1):
                symbol = row[level] if level < len(row) else 0
                if symbol and symbol not in self._keys:
                    self._keys[symbol] = (first + code, level == 1)
        self._spare: OrderedDict[int, int] = OrderedDict((code, 0) for code in spare)
        self._shift_code = self._keys[_SHIFT][0]

    def _fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> None:
        self._connection.test.FakeInput(kind, detail, 0, self._connection.root if kind == _MOTION else 0, x, y, 0)

    def _code(self, symbol: int) -> tuple[int, bool]:
        """Key code and whether Shift is needed; gives the symbol a spare key when it has none."""
        if symbol in self._keys:
            code, shifted = self._keys[symbol]
            if code in self._spare:
                self._spare.move_to_end(code)
            return code, shifted
        code, previous = next(iter(self._spare.items()))
        if previous:
            self._flush()
            self._settle()
            del self._keys[previous]
        row = [symbol] * 2 + [0] * (self._per_code - 2)
        self._connection.core.ChangeKeyboardMapping(1, code, self._per_code, row)
        self._spare[code] = symbol
        self._spare.move_to_end(code)
        self._keys[symbol] = (code, False)
        return self._keys[symbol]

    def _flush(self) -> None:
        self._connection.sync()

    def move(self, x: int, y: int) -> None:
        self._fake(_MOTION, 0, x, y)

    def press(self, button: str) -> None:
        self._fake(_BUTTON_PRESS, BUTTONS[button])

    def release(self, button: str) -> None:
        self._fake(_BUTTON_RELEASE, BUTTONS[button])

    def click(self, position: tuple[int, int] | None, button: str, count: int, modifiers: Iterable[str]) -> None:
        if position:
            self.move(*position)
        held = self._hold(modifiers)
        for _ in range(count):
            self.press(button)
            self.release(button)
        self._let_go(held)

    def drag(self, path: list[tuple[int, int]], button: str, modifiers: Iterable[str]) -> None:
        """Press at the first point, pass through every point with motion between, release at the last."""
        self.move(*path[0])
        held = self._hold(modifiers)
        self.press(button)
        self._flush()
        self._settle()
        x, y = path[0]
        for next_x, next_y in path[1:]:
            steps = max(2, max(abs(next_x - x), abs(next_y - y)) // DRAG_STEP_PX)
            for step in range(1, steps + 1):
                self.move(x + (next_x - x) * step // steps, y + (next_y - y) * step // steps)
                self._flush()
                time.sleep(DRAG_STEP_S)
            x, y = next_x, next_y
        self._settle()
        self.release(button)
        self._let_go(held)

    def scroll(self, dx: int, dy: int, modifiers: Iterable[str]) -> None:
        held = self._hold(modifiers)
        for notches, negative, positive in ((dy, _SCROLL_UP, _SCROLL_DOWN), (dx, _SCROLL_LEFT, _SCROLL_RIGHT)):
            for _ in range(abs(notches)):
                button = positive if notches > 0 else negative
                self._fake(_BUTTON_PRESS, button)
                self._fake(_BUTTON_RELEASE, button)
        self._let_go(held)

    def type(self, text: str) -> None:
        for character in text:
            code, shifted = self._code(character_keysym(character))
            if shifted:
                self._fake(_KEY_PRESS, self._shift_code)
            self._fake(_KEY_PRESS, code)
            self._fake(_KEY_RELEASE, code)
            if shifted:
                self._fake(_KEY_RELEASE, self._shift_code)

    def chord(self, names: Iterable[str]) -> None:
        self._let_go(self._hold(names))

    def key_down(self, name: str) -> None:
        self._hold([name])

    def key_up(self, name: str) -> None:
        self._fake(_KEY_RELEASE, self._code(keysym(name))[0])

    def _hold(self, names: Iterable[str]) -> list[int]:
        held: list[int] = []
        for name in names:
            code, shifted = self._code(keysym(name))
            if shifted and self._shift_code not in held:
                self._fake(_KEY_PRESS, self._shift_code)
                held.append(self._shift_code)
            self._fake(_KEY_PRESS, code)
            held.append(code)
        return held

    def _let_go(self, held: list[int]) -> None:
        for code in reversed(held):
            self._fake(_KEY_RELEASE, code)
