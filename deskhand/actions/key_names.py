"""Key names of model vendors and libraries, converted to and from canonical names.

Parsing accepts every alias that `keys.canonical` knows; writing uses the names of one family, and `read(write(key)) ==
key`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from deskhand.actions.keys import NAMES, PUNCTUATION, canonical
from deskhand.errors import AgentError


@dataclass(frozen=True)
class KeyNaming:
    """Key names of one family. `names` maps canonical names to those that differ ("" if the family has no name for a
    key).

    With `case_insensitive`, "C" is the key c, not the character C; `uppercase` writes keys in capitals.
    """

    names: Mapping[str, str]
    case_insensitive: bool = False
    uppercase: bool = False
    pass_through: bool = False
    """Accept and return any name unchanged."""

    def read(self, name: str) -> str:
        """Return the canonical name. Raises `AgentError` if the key is unknown."""
        if self.pass_through:
            return name
        key = canonical(name)
        lower = key.lower()
        return lower if self.case_insensitive and len(key) == 1 and len(lower) == 1 else key

    def write(self, key: str) -> str:
        """Return the family's name of a canonical key. Raises `AgentError` if it has none."""
        name = self.names.get(key, key)
        if self.case_insensitive and len(key) == 1 and key != key.lower():
            raise AgentError(f"a key cannot be {key!r} here; say shift and {key.lower()!r}")
        if self.uppercase and (len(key) > 1 or "a" <= key <= "z"):
            name = name.upper()
        if not name or self.read(name) != key:
            raise AgentError(f"the key {key!r} has no name here")
        return name

    def write_in_json(self, key: str) -> str:
        """Like `write`, but the plus key is "plus", as in `pattern`."""
        name = self.write(key)
        return "plus" if name == "+" and not self.pass_through else name

    def read_chord(self, text: str) -> tuple[str, ...]:
        """Split "ctrl+s" into canonical keys; "+" alone or after a separator is the plus key. Raises `AgentError`."""
        if text == "+" or text.endswith("++"):
            text = f"{text[:-1]}plus"
        return tuple(self.read(part) for part in text.split("+"))

    def write_chord(self, keys: tuple[str, ...]) -> str:
        """Join keys with "+". Raises `AgentError` if a key has no name."""
        return "+".join(map(self.write_in_json, keys))

    @cached_property
    def pattern(self) -> str:
        """Regular expression of the family's names and ASCII characters, for JSON schemas ("" matches any name)."""
        return "" if self.pass_through else f"^{self._name}$"

    @cached_property
    def chord_pattern(self) -> str:
        """Regular expression of chords of up to six keys."""
        return rf"^{self._name}(\+{self._name}){{0,5}}$"

    @cached_property
    def _name(self) -> str:
        names = []
        for key in (*NAMES, *map(chr, range(0x21, 0x7F))):
            try:
                names.append(self.write_in_json(key))
            except AgentError:
                continue
        return f"({'|'.join(re.escape(name) for name in sorted(set(names), key=lambda name: (-len(name), name)))})"


X11 = KeyNaming(
    {
        **PUNCTUATION,
        "enter": "Return", "esc": "Escape", "backspace": "BackSpace", "tab": "Tab", "delete": "Delete",
        "insert": "Insert", "home": "Home", "end": "End", "pageup": "Page_Up", "pagedown": "Page_Down", "up": "Up",
        "down": "Down", "left": "Left", "right": "Right", "capslock": "Caps_Lock", "numlock": "Num_Lock",
        "scrolllock": "Scroll_Lock", "pause": "Pause", "printscreen": "Print", "menu": "Menu", "shiftright": "Shift_R",
        "ctrlright": "Control_R", "altright": "Alt_R", "superright": "Super_R", "nummultiply": "KP_Multiply",
        "numadd": "KP_Add", "numsubtract": "KP_Subtract", "numdecimal": "KP_Decimal", "numdivide": "KP_Divide",
        "numenter": "KP_Enter", "volumeup": "XF86AudioRaiseVolume", "volumedown": "XF86AudioLowerVolume",
        "volumemute": "XF86AudioMute", "browserback": "XF86Back", "browserforward": "XF86Forward",
        **{f"f{number}": f"F{number}" for number in range(1, 25)},
        **{f"num{digit}": f"KP_{digit}" for digit in range(10)},
    }
)  # fmt: skip
PYAUTOGUI = KeyNaming(
    {
        "super": "win", "superright": "winright", "menu": "apps", "nummultiply": "multiply", "numadd": "add",
        "numsubtract": "subtract", "numdecimal": "decimal", "numdivide": "divide", "numenter": "",
    }
)  # fmt: skip
OPENAI = KeyNaming({}, case_insensitive=True, uppercase=True)
GEMINI = KeyNaming({"ctrl": "control", "super": "command", "esc": "escape"}, case_insensitive=True)
PLAYWRIGHT = KeyNaming(
    dict.fromkeys(NAMES, "")
    | {
        "enter": "Enter", "esc": "Escape", "backspace": "Backspace", "tab": "Tab", "delete": "Delete",
        "insert": "Insert", "home": "Home", "end": "End", "pageup": "PageUp", "pagedown": "PageDown", "up": "ArrowUp",
        "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight", "ctrl": "Control", "shift": "Shift",
        "alt": "Alt", "super": "Meta", "space": "Space", "capslock": "CapsLock", "numlock": "NumLock",
        "scrolllock": "ScrollLock", "printscreen": "PrintScreen", "pause": "Pause", "menu": "ContextMenu",
        **{f"f{number}": f"F{number}" for number in range(1, 25)},
    }
)  # fmt: skip
