"""Pointer and keyboard input through the XTEST extension: `XTestInput`.

Keys and buttons that an op presses are released by its end. Characters that the keyboard lacks are mapped to spare
keys, so every Unicode character can be typed.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from xcffib.xproto import KB, AutoRepeatMode

from deskhand.actions.durations import DRAG_STEP_PX, DRAG_STEP_S
from deskhand.actions.keys import NAMES, character_keysym, keysym
from deskhand.desktop.local.theme import DOUBLE_CLICK_MS
from deskhand.desktop.local.x_connection import XConnection

_KEY_PRESS, _KEY_RELEASE, _BUTTON_PRESS, _BUTTON_RELEASE, _MOTION = 2, 3, 4, 5, 6
BUTTONS = {"left": 1, "middle": 2, "right": 3, "back": 8, "forward": 9}
_SCROLL_UP, _SCROLL_DOWN, _SCROLL_LEFT, _SCROLL_RIGHT = 4, 5, 6, 7
_SHIFT = 0xFFE1
_VENDOR_SYMBOLS = 0x1008  # keys of special keyboards: those without a name in `actions.keys` can be remapped
_NAMED_SYMBOLS = {keysym(name) for name in NAMES} - {0}
_COMMAND_CODES = {*range(144, 200), 225}
"""Keys for browsing, mail, sound and searching. Chromium acts on them by their code, whatever is mapped to them."""
_CLICK_MARGIN_S = 0.01
_REPEAT_GAP_S = 0.05
_REPEAT_CHECK_S = 1.0
_SAME_POSITION_PX = 6


class XTestInput:
    """Sends input.

    `settle` lets guests catch up before the next input; `drain` waits until they have read it all, and returns False if
    they did not in time. `await_focus` waits until the window manager has given the focus to the window that was
    pressed. `repeat_gap_s` returns how long the active program ignores a key after it was pressed.
    """

    def __init__(
        self,
        connection: XConnection,
        settle: Callable[[], None],
        drain: Callable[[], bool],
        await_focus: Callable[[], None],
        repeat_gap_s: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._settle = settle
        self._drain = drain
        self._await_focus = await_focus
        self._is_focus_pending = False
        self._repeat_gap_s = repeat_gap_s
        self._gap_s: float | None = None
        """What `repeat_gap_s` returned for this text or chord; None until it was needed."""
        self._pressed_at: dict[int, float] = {}
        self.position = connection.pointer()
        self._last_click = (0.0, self.position)
        self._is_click_pending = False
        self._keys: dict[int, tuple[int, bool]] = {}
        self._down: set[int] = set()
        setup = connection.setup
        first, count = setup.min_keycode, setup.max_keycode - setup.min_keycode + 1
        reply = connection.core.GetKeyboardMapping(first, count).reply()
        self._per_code = reply.keysyms_per_keycode
        symbols = list(reply.keysyms)
        spare_codes: list[int] = []
        for code in range(count):
            row = symbols[code * self._per_code : (code + 1) * self._per_code]
            is_free = all(not symbol or symbol >> 16 == _VENDOR_SYMBOLS for symbol in row)
            is_command = any(row) and (first + code in _COMMAND_CODES or not _NAMED_SYMBOLS.isdisjoint(row))
            if is_free and not is_command:
                spare_codes.append(first + code)
                continue
            for level, symbol in enumerate(row[:2]):
                if symbol and symbol not in self._keys:
                    self._keys[symbol] = (first + code, level == 1)
        self._spare_codes: OrderedDict[int, int] = OrderedDict((code, 0) for code in spare_codes)
        self._shift_code = self._keys[_SHIFT][0]
        no_repeat = [AutoRepeatMode.Off]  # typed text must not depend on the machine's load
        connection.core.ChangeKeyboardControl(KB.AutoRepeatMode, no_repeat)

    def _fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> None:
        if kind == _KEY_PRESS:
            self._down.add(detail)
        elif kind == _KEY_RELEASE:
            self._down.discard(detail)
        self._connection.test.FakeInput(kind, detail, 0, self._connection.root if kind == _MOTION else 0, x, y, 0)

    def _press_key(self, code: int) -> None:
        if self._is_focus_pending:
            self._is_focus_pending = False
            self._await_focus()
        if code != self._shift_code:
            self._await_repeat(code)
        self._fake(_KEY_PRESS, code)
        self._pressed_at[code] = time.monotonic()

    def _await_repeat(self, code: int) -> None:
        """Wait until the active program takes a key that was pressed before, also if others were pressed since."""
        if time.monotonic() - self._pressed_at.get(code, 0.0) >= _REPEAT_CHECK_S:
            return
        if self._gap_s is None:
            self._gap_s = self._repeat_gap_s()
        if self._gap_s:
            # The program's timer starts when it reads the first press, and must be handled before the second.
            for wait_s in (self._gap_s, 0.0):
                self._connection.sync()
                if not self._drain():
                    self._gap_s = 0.0  # it reads nothing: wait once per text or chord
                    return
                time.sleep(wait_s)

    def _code(self, symbol: int) -> tuple[int, bool]:
        """Return the key code of a mapped symbol and whether it needs Shift."""
        code, shifted = self._keys[symbol]
        if code in self._spare_codes:
            self._spare_codes.move_to_end(code)
        return code, shifted

    def _free_codes(self, count: int) -> list[int]:
        """Return the spare keys that are not held, the least recently used first; if they are fewer than `count`, all
        are released.
        """
        codes = [code for code in self._spare_codes if code not in self._down]
        if len(codes) < count:
            for code in self._down.intersection(self._spare_codes):
                self._fake(_KEY_RELEASE, code)
            codes = list(self._spare_codes)
        return codes

    def _map_keys(self, symbols: Iterable[int]) -> None:
        """Map symbols without a key to the least recently used spare keys that are not held."""
        symbols = list(dict.fromkeys(symbols))
        missing = [symbol for symbol in symbols if symbol not in self._keys]
        if not missing:
            return
        for symbol in symbols:  # mark their spare keys as used, so that these are not remapped
            if symbol in self._keys:
                self._code(symbol)
        self._connection.sync()
        self._drain()
        codes = sorted(self._free_codes(len(missing))[: len(missing)])
        for code, symbol in zip(codes, missing, strict=True):
            self._keys.pop(self._spare_codes[code], None)
            self._spare_codes[code] = symbol
            self._spare_codes.move_to_end(code)
            self._keys[symbol] = (code, False)
        for _, group in itertools.groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0]):
            block = [code for _, code in group]  # adjacent codes in one request: guests react to every request
            unused = [0] * (self._per_code - 2)
            rows = [value for code in block for value in (*[self._spare_codes[code]] * 2, *unused)]
            self._connection.core.ChangeKeyboardMapping(len(block), block[0], self._per_code, rows)
        self._connection.sync()
        self._drain()

    def move(self, x: int, y: int) -> None:
        self._fake(_MOTION, 0, x, y)
        self.position = (x, y)

    def press(self, button: str) -> None:
        self._is_focus_pending = True
        self._fake(_BUTTON_PRESS, BUTTONS[button])

    def release(self, button: str) -> None:
        self._fake(_BUTTON_RELEASE, BUTTONS[button])

    def click(self, position: tuple[int, int] | None, button: str, count: int, modifiers: Iterable[str]) -> None:
        if position:
            self.move(*position)
        self._avoid_double_click(count)
        held = self._press_keys(modifiers)
        for index in range(count):
            if index:  # some programs merge presses with equal time stamps
                self._connection.sync()
                time.sleep(_REPEAT_GAP_S)
            self.press(button)
            self.release(button)
        self._release_keys(held)
        self._last_click = (time.monotonic(), self.position)
        self._is_click_pending = True

    def mark_caught_up(self) -> None:
        """Record that guests have processed all input, so their double-click timers have started."""
        if self._is_click_pending:
            self._last_click = (time.monotonic(), self._last_click[1])
            self._is_click_pending = False

    def _avoid_double_click(self, count: int) -> None:
        """Wait so that clicks of two ops do not merge into a double or triple click.

        Toolkits count a press as the third if it comes within twice the double-click time of the first.
        """
        at_s, last_position = self._last_click
        near = all(abs(old - new) <= _SAME_POSITION_PX for old, new in zip(last_position, self.position, strict=True))
        remaining = at_s + DOUBLE_CLICK_MS / 1000 * min(count, 2) + _CLICK_MARGIN_S - time.monotonic()
        if near and remaining > 0:
            self._connection.sync()
            time.sleep(remaining)

    def drag(self, path: list[tuple[int, int]], button: str, modifiers: Iterable[str]) -> None:
        """Press at the first point, move through every point, release at the last."""
        self.move(*path[0])
        held = self._press_keys(modifiers)
        self.press(button)
        self._connection.sync()
        self._settle()
        x, y = path[0]
        for next_x, next_y in path[1:]:
            steps = max(2, max(abs(next_x - x), abs(next_y - y)) // DRAG_STEP_PX)
            for step in range(1, steps + 1):
                self.move(x + (next_x - x) * step // steps, y + (next_y - y) * step // steps)
                self._connection.sync()
                time.sleep(DRAG_STEP_S)
            x, y = next_x, next_y
        self._settle()
        self.release(button)
        self._release_keys(held)

    def scroll(self, dx: int, dy: int, modifiers: Iterable[str]) -> None:
        held = self._press_keys(modifiers)
        for notches, negative, positive in ((dy, _SCROLL_UP, _SCROLL_DOWN), (dx, _SCROLL_LEFT, _SCROLL_RIGHT)):
            for _ in range(abs(notches)):
                button = positive if notches > 0 else negative
                self._fake(_BUTTON_PRESS, button)
                self._fake(_BUTTON_RELEASE, button)
        self._release_keys(held)

    def type(self, text: str) -> None:
        """Type `text` in runs that need no more symbols than there are spare keys."""
        self._gap_s = None
        symbols = [character_keysym(character) for character in text]
        free = len(self._free_codes(1))
        while symbols:
            run, needed = 0, set()
            for symbol in symbols:
                needed.add(symbol)
                if len(needed) > free:
                    break
                run += 1
            self._map_keys(symbols[:run])
            for symbol in symbols[:run]:
                self._stroke(*self._code(symbol))
            del symbols[:run]

    def _stroke(self, code: int, shifted: bool) -> None:
        if shifted:
            self._press_key(self._shift_code)
        self._press_key(code)
        self._fake(_KEY_RELEASE, code)
        if shifted:
            self._fake(_KEY_RELEASE, self._shift_code)

    def press_chord(self, names: Iterable[str]) -> None:
        self._release_keys(self._press_keys(names))

    def key_down(self, name: str) -> None:
        self._press_keys([name])

    def key_up(self, name: str) -> None:
        symbol = keysym(name)
        self._map_keys([symbol])
        self._fake(_KEY_RELEASE, self._code(symbol)[0])

    def _press_keys(self, names: Iterable[str]) -> list[int]:
        self._gap_s = None
        held: list[int] = []
        symbols = [keysym(name) for name in names]
        self._map_keys(symbols)
        for symbol in symbols:
            code, shifted = self._code(symbol)
            if shifted and self._shift_code not in held:
                self._press_key(self._shift_code)
                held.append(self._shift_code)
            self._press_key(code)
            held.append(code)
        return held

    def _release_keys(self, held: list[int]) -> None:
        for code in reversed(held):
            self._fake(_KEY_RELEASE, code)
