"""The host's hand: pointer and keyboard by the XTEST extension. Invariant: what is pressed for an op is released by the end of it.

Characters that the keyboard does not have get a spare key of their own, so every Unicode character can be typed.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from xcffib.xproto import KB, AutoRepeatMode

from deskhand.actions.keys import NAMES, character_keysym, keysym
from deskhand.desktop.local.theme import DOUBLE_CLICK_MS
from deskhand.desktop.local.x_connection import XConnection

_KEY_PRESS, _KEY_RELEASE, _BUTTON_PRESS, _BUTTON_RELEASE, _MOTION = 2, 3, 4, 5, 6
BUTTONS = {"left": 1, "middle": 2, "right": 3, "back": 8, "forward": 9}
_SCROLL_UP, _SCROLL_DOWN, _SCROLL_LEFT, _SCROLL_RIGHT = 4, 5, 6, 7
_SHIFT = 0xFFE1
_VENDOR_SYMBOLS = (
    0x1008  # keys for sound, browsers, mail...: those that have no name here are free for other characters
)
_NAMED_SYMBOLS = {keysym(name) for name in NAMES} - {0}
_CLICK_MARGIN_S = 0.01
_REPEAT_GAP_S = 0.05
_SAME_PLACE_PX = 6
DRAG_STEP_PX = 12
DRAG_STEP_S = 0.004


class XTestInput:
    """Sends input. `settle` is called where a guest should catch up before the next input makes sense, `drained` where it must
    have taken in all input so far, however long that takes.
    """

    def __init__(self, connection: XConnection, settle: Callable[[], None], drained: Callable[[], None]) -> None:
        self._connection = connection
        self._settle = settle
        self._drained = drained
        self.position = connection.pointer()
        self._last_click = (0.0, self.position)
        self._unseen_click = False
        self._keys: dict[int, tuple[int, bool]] = {}
        self._down: set[int] = set()
        setup = connection.setup
        first, count = setup.min_keycode, setup.max_keycode - setup.min_keycode + 1
        reply = connection.core.GetKeyboardMapping(first, count).reply()
        self._per_code = reply.keysyms_per_keycode
        symbols = list(reply.keysyms)
        spare: list[int] = []
        for code in range(count):
            row = symbols[code * self._per_code : (code + 1) * self._per_code]
            if not any(
                symbol and symbol >> 16 != _VENDOR_SYMBOLS for symbol in row
            ) and not _NAMED_SYMBOLS.intersection(row):
                spare.append(first + code)
                continue
            for level in (0, 1):
                symbol = row[level] if level < len(row) else 0
                if symbol and symbol not in self._keys:
                    self._keys[symbol] = (first + code, level == 1)
        self._spare: OrderedDict[int, int] = OrderedDict((code, 0) for code in spare)
        self._shift_code = self._keys[_SHIFT][0]
        no_repeat = [AutoRepeatMode.Off]  # how long a key is down depends on the machine's load; what it types must not
        connection.core.ChangeKeyboardControl(KB.AutoRepeatMode, no_repeat)

    def _fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> None:
        if kind == _KEY_PRESS:
            self._down.add(detail)
        elif kind == _KEY_RELEASE:
            self._down.discard(detail)
        self._connection.test.FakeInput(kind, detail, 0, self._connection.root if kind == _MOTION else 0, x, y, 0)

    def _code(self, symbol: int) -> tuple[int, bool]:
        """Key code of a symbol that has a key, and whether Shift is needed."""
        code, shifted = self._keys[symbol]
        if code in self._spare:
            self._spare.move_to_end(code)
        return code, shifted

    def _provide(self, symbols: Iterable[int]) -> None:
        """Give symbols that have no key a spare one each (the longest unused, none that is held), and let guests take note."""
        symbols = list(dict.fromkeys(symbols))
        missing = [symbol for symbol in symbols if symbol not in self._keys]
        if not missing:
            return
        for symbol in symbols:  # those that have a spare key already need it now: it is not for the others to take
            if symbol in self._keys:
                self._code(symbol)
        self._flush()
        self._drained()
        codes = sorted(itertools.islice((code for code in self._spare if code not in self._down), len(missing)))
        for code, symbol in zip(codes, missing, strict=True):
            self._keys.pop(self._spare[code], None)
            self._spare[code] = symbol
            self._spare.move_to_end(code)
            self._keys[symbol] = (code, False)
        for _, group in itertools.groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0]):
            block = [code for _, code in group]  # neighbours in one request: every guest reacts to every request
            rows = [
                value for code in block for value in (self._spare[code], self._spare[code], *[0] * (self._per_code - 2))
            ]
            self._connection.core.ChangeKeyboardMapping(len(block), block[0], self._per_code, rows)
        self._flush()
        self._drained()

    def _flush(self) -> None:
        self._connection.sync()

    def move(self, x: int, y: int) -> None:
        self._fake(_MOTION, 0, x, y)
        self.position = (x, y)

    def press(self, button: str) -> None:
        self._fake(_BUTTON_PRESS, BUTTONS[button])

    def release(self, button: str) -> None:
        self._fake(_BUTTON_RELEASE, BUTTONS[button])

    def click(self, position: tuple[int, int] | None, button: str, count: int, modifiers: Iterable[str]) -> None:
        if position:
            self.move(*position)
        self._keep_apart(count)
        held = self._hold(modifiers)
        for index in range(count):
            if index:  # some programs take presses with one time stamp for one press
                self._flush()
                time.sleep(_REPEAT_GAP_S)
            self.press(button)
            self.release(button)
        self._let_go(held)
        self._last_click = (time.monotonic(), self.position)
        self._unseen_click = True

    def guests_caught_up(self) -> None:
        """The guests have acted on all input: their double-click clocks have started by now."""
        if self._unseen_click:
            self._last_click = (time.monotonic(), self._last_click[1])
            self._unseen_click = False

    def _keep_apart(self, count: int) -> None:
        """Clicks of two ops at one place must not become a double click, nor a click and a double click a triple one.

        Toolkits take a press for the third when it comes within twice the double-click time of the first.
        """
        at_s, place = self._last_click
        near = all(abs(old - new) <= _SAME_PLACE_PX for old, new in zip(place, self.position, strict=True))
        remaining = at_s + DOUBLE_CLICK_MS / 1000 * min(count, 2) + _CLICK_MARGIN_S - time.monotonic()
        if near and remaining > 0:
            self._flush()
            time.sleep(remaining)

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
        """Keys for `text`, in runs that need no more symbols than there are spare keys."""
        symbols = [character_keysym(character) for character in text]
        free = len(self._spare) - len(self._down.intersection(self._spare))
        while symbols:
            run, needed = 0, set()
            for symbol in symbols:
                needed.add(symbol)
                if len(needed) > free:
                    break
                run += 1
            self._provide(symbols[:run])
            for symbol in symbols[:run]:
                self._stroke(*self._code(symbol))
            del symbols[:run]

    def _stroke(self, code: int, shifted: bool) -> None:
        if shifted:
            self._fake(_KEY_PRESS, self._shift_code)
        self._fake(_KEY_PRESS, code)
        self._fake(_KEY_RELEASE, code)
        if shifted:
            self._fake(_KEY_RELEASE, self._shift_code)

    def press_chord(self, names: Iterable[str]) -> None:
        self._let_go(self._hold(names))

    def key_down(self, name: str) -> None:
        self._hold([name])

    def key_up(self, name: str) -> None:
        symbol = keysym(name)
        self._provide([symbol])
        self._fake(_KEY_RELEASE, self._code(symbol)[0])

    def _hold(self, names: Iterable[str]) -> list[int]:
        held: list[int] = []
        symbols = [keysym(name) for name in names]
        self._provide(symbols)
        for symbol in symbols:
            code, shifted = self._code(symbol)
            if shifted and self._shift_code not in held:
                self._fake(_KEY_PRESS, self._shift_code)
                held.append(self._shift_code)
            self._fake(_KEY_PRESS, code)
            held.append(code)
        return held

    def _let_go(self, held: list[int]) -> None:
        for code in reversed(held):
            self._fake(_KEY_RELEASE, code)
