"""How others spell the names of keys. Invariant: for every key that a spelling has, `read(write(key)) == key`; what it has no name
for is an `AgentError`.

Reading takes every name that `keys.canonical` knows, whoever's it is; writing uses the names of one family.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from deskhand.actions.keys import NAMES, canonical
from deskhand.errors import AgentError


@dataclass(frozen=True)
class KeyNaming:
    """Names of one family. `names` are those that differ from the canonical ones ("" where there is none).

    `caseless`: "C" means the key c, not the character C; with `capitals`, keys are written so.
    """

    names: Mapping[str, str]
    caseless: bool = False
    capitals: bool = False
    anything: bool = False
    """Names are passed on as they are."""

    def read(self, name: str) -> str:
        """The canonical name. Raises `AgentError` when `name` names no key."""
        if self.anything:
            return name
        key = canonical(name)
        small = key.lower()
        return small if self.caseless and len(key) == 1 and len(small) == 1 else key

    def write(self, key: str) -> str:
        """The family's name of a canonical key. Raises `AgentError` when it has none."""
        name = self.names.get(key, key)
        if self.caseless and len(key) == 1 and key != key.lower():
            raise AgentError(f"a key cannot be {key!r} here; say shift and {key.lower()!r}")
        if self.capitals and (len(key) > 1 or "a" <= key <= "z"):
            name = name.upper()
        if not name or self.read(name) != key:
            raise AgentError(f"the key {key!r} has no name here")
        return name

    def read_chord(self, text: str) -> tuple[str, ...]:
        """The keys of "ctrl+s" in order; "+" alone or after a joiner is the plus key. Raises `AgentError`."""
        if text == "+" or text.endswith("++"):
            text = f"{text[:-1]}plus"
        return tuple(self.read(part) for part in text.split("+"))

    def write_chord(self, keys: tuple[str, ...]) -> str:
        """`keys` as one text. Raises `AgentError`."""
        names = [self.write(key) for key in keys]
        return "+".join("plus" if name == "+" else name for name in names)

    @cached_property
    def pattern(self) -> str:
        """A regular expression of the names, for JSON schema and grammars ("" for any); of characters, those of ASCII."""
        return "" if self.anything else f"^{self._name}$"

    @cached_property
    def chord_pattern(self) -> str:
        """The same for chords of up to six keys."""
        return rf"^{self._name}(\+{self._name}){{0,5}}$"

    @cached_property
    def _name(self) -> str:
        spelled = []
        for key in (*NAMES, *map(chr, range(0x21, 0x7F))):
            try:
                spelled.append("plus" if key == "+" else self.write(key))
            except AgentError:
                continue
        return f"({'|'.join(re.escape(name) for name in sorted(set(spelled), key=lambda name: (-len(name), name)))})"


_PUNCTUATION = {
    "+": "plus", "-": "minus", ",": "comma", ".": "period", "/": "slash", "\\": "backslash", ";": "semicolon", "=": "equal",
    "'": "apostrophe", "`": "grave", "[": "bracketleft", "]": "bracketright", "_": "underscore", "!": "exclam", "@": "at",
    "#": "numbersign", "$": "dollar", "%": "percent", "&": "ampersand", "*": "asterisk", "(": "parenleft", ")": "parenright",
    ":": "colon", "<": "less", ">": "greater", "?": "question", '"': "quotedbl", "~": "asciitilde", "^": "asciicircum",
    "|": "bar", "{": "braceleft", "}": "braceright",
}  # fmt: skip

X11 = KeyNaming(
    {
        **_PUNCTUATION,
        "enter": "Return", "esc": "Escape", "backspace": "BackSpace", "tab": "Tab", "delete": "Delete", "insert": "Insert",
        "home": "Home", "end": "End", "pageup": "Page_Up", "pagedown": "Page_Down", "up": "Up", "down": "Down", "left": "Left",
        "right": "Right", "capslock": "Caps_Lock", "numlock": "Num_Lock", "scrolllock": "Scroll_Lock", "pause": "Pause",
        "printscreen": "Print", "menu": "Menu", "shiftright": "Shift_R", "ctrlright": "Control_R", "altright": "Alt_R",
        "superright": "Super_R", "nummultiply": "KP_Multiply", "numadd": "KP_Add", "numsubtract": "KP_Subtract",
        "numdecimal": "KP_Decimal", "numdivide": "KP_Divide", "numenter": "KP_Enter", "volumeup": "XF86AudioRaiseVolume",
        "volumedown": "XF86AudioLowerVolume", "volumemute": "XF86AudioMute", "browserback": "XF86Back",
        "browserforward": "XF86Forward",
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
OPENAI = KeyNaming({}, caseless=True, capitals=True)
GEMINI = KeyNaming({"ctrl": "control", "super": "command", "esc": "escape"}, caseless=True)
