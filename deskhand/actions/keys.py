"""Key names and their X keysyms.

Every key has one canonical lower-case name: `ctrl`, `shift`, `alt`, `super`, `enter`, `esc`, `tab`, `backspace`,
`delete`, arrows, `home`, `end`, `pageup`, `pagedown`, `insert`, `space`, `capslock`, `f1`..`f24` and a few more. A
single character names itself, case preserved. Keysyms follow appendix A of the X protocol ("Keysym encoding").
"""

from __future__ import annotations

from deskhand.errors import AgentError

_NAMED: dict[str, int] = {
    "backspace": 0xFF08, "tab": 0xFF09, "enter": 0xFF0D, "pause": 0xFF13, "scrolllock": 0xFF14, "esc": 0xFF1B,
    "home": 0xFF50, "left": 0xFF51, "up": 0xFF52, "right": 0xFF53, "down": 0xFF54, "pageup": 0xFF55, "pagedown": 0xFF56,
    "end": 0xFF57, "printscreen": 0xFF61, "insert": 0xFF63, "menu": 0xFF67, "numlock": 0xFF7F, "shift": 0xFFE1,
    "shiftright": 0xFFE2, "ctrl": 0xFFE3, "ctrlright": 0xFFE4, "capslock": 0xFFE5, "alt": 0xFFE9, "altright": 0xFFEA,
    "super": 0xFFEB, "superright": 0xFFEC, "delete": 0xFFFF, "space": 0x20, "volumedown": 0x1008FF11,
    "volumemute": 0x1008FF12, "volumeup": 0x1008FF13, "browserback": 0x1008FF26, "browserforward": 0x1008FF27,
    "nummultiply": 0xFFAA, "numadd": 0xFFAB, "numsubtract": 0xFFAD, "numdecimal": 0xFFAE, "numdivide": 0xFFAF,
    "numenter": 0xFF8D,
    **{f"f{number}": 0xFFBD + number for number in range(1, 25)},
    **{f"num{digit}": 0xFFB0 + digit for digit in range(10)},
}  # fmt: skip

DEAD_KEYS = {
    f"dead{accent}": 0xFE50 + index
    for index, accent in enumerate(
        ("grave", "acute", "circumflex", "tilde", "macron", "breve", "abovedot", "diaeresis", "abovering",
         "doubleacute", "caron", "cedilla", "ogonek")
    )
}  # fmt: skip
"""Accent keys that combine with the next letter ("dead_acute" and e make é). Typing text never needs them."""

PUNCTUATION = {
    "+": "plus", "-": "minus", ",": "comma", ".": "period", "/": "slash", "\\": "backslash", ";": "semicolon",
    "=": "equal", "'": "apostrophe", "`": "grave", "[": "bracketleft", "]": "bracketright", "_": "underscore",
    "!": "exclam", "@": "at", "#": "numbersign", "$": "dollar", "%": "percent", "&": "ampersand", "*": "asterisk",
    "(": "parenleft", ")": "parenright", ":": "colon", "<": "less", ">": "greater", "?": "question", '"': "quotedbl",
    "~": "asciitilde", "^": "asciicircum", "|": "bar", "{": "braceleft", "}": "braceright",
}  # fmt: skip
"""Names that X11 gives to characters."""

_ALIASES_BY_KEY = {
    "ctrl": "control ctrlleft controlleft controll",
    "ctrlright": "controlright controlr",
    "shift": "shiftleft shiftl",
    "shiftright": "shiftr",
    "alt": "altleft altl option optionleft",
    "altright": "altr altgr optionright",
    "super": "win winleft windows meta metaleft cmd command superleft superl",
    "superright": "winright superr",
    "enter": "return linefeed",
    "esc": "escape",
    "delete": "del forwarddelete",
    "insert": "ins",
    "backspace": "back bksp",
    "pageup": "pgup prior",
    "pagedown": "pgdn pgdown next",
    "up": "arrowup uparrow",
    "down": "arrowdown downarrow",
    "left": "arrowleft leftarrow",
    "right": "arrowright rightarrow",
    "space": "spacebar",
    "capslock": "caps",
    "printscreen": "print prtsc prtscr prntscrn",
    "menu": "apps contextmenu",
    "numenter": "kpenter",
    "numadd": "kpadd add",
    "numsubtract": "kpsubtract subtract",
    "nummultiply": "kpmultiply multiply",
    "numdivide": "kpdivide divide",
    "numdecimal": "kpdecimal decimal",
    "volumeup": "audiovolumeup xf86audioraisevolume",
    "volumedown": "audiovolumedown xf86audiolowervolume",
    "volumemute": "audiovolumemute xf86audiomute",
    "browserback": "xf86back",
    "browserforward": "xf86forward",
    "=": "equals",
    "`": "backquote",
}
_ALIASES: dict[str, str] = {
    **{name: character for character, name in PUNCTUATION.items()},
    **{f"{prefix}{digit}": f"num{digit}" for prefix in ("numpad", "kp") for digit in range(10)},
    **{alias: key for key, aliases in _ALIASES_BY_KEY.items() for alias in aliases.split()},
}

MODIFIERS = ("ctrl", "shift", "alt", "super", "ctrlright", "shiftright", "altright", "superright")
NAMES = tuple(sorted(_NAMED))
_CONTROL_KEYS = {
    "\n": "enter",
    "\r": "enter",
    "\t": "tab",
    "\b": "backspace",
    "\x1b": "esc",
    "\x7f": "delete",
    " ": "space",
}


def canonical(name: str) -> str:
    """Return the canonical name of a key. Raises `AgentError` if the key is unknown.

    Case, spaces, underscores and hyphens are ignored ("Page_Up" is "pageup"); a single character names itself.
    """
    if len(name) == 1:
        if name in _CONTROL_KEYS:
            return _CONTROL_KEYS[name]
        if name.isprintable():
            return name
        raise AgentError(f"unknown key {name!r}; use a name such as 'enter' or one printable character")
    folded = name.strip().lower().replace("_", "").replace("-", "").replace(" ", "")
    folded = _ALIASES.get(folded, folded)
    if folded in _NAMED or folded in DEAD_KEYS or (len(folded) == 1 and folded.isprintable()):
        return folded
    raise AgentError(f"unknown key {name!r}; use a name such as 'ctrl', 'enter' or 'pagedown', or one character")


def keysym(name: str) -> int:
    """Return the X keysym of a key name or alias. Raises `AgentError` if the key is unknown."""
    key = canonical(name)
    return _NAMED.get(key) or DEAD_KEYS.get(key) or character_keysym(key)


def character_keysym(character: str) -> int:
    """Return the keysym that types a character: its code point, plus 0x01000000 outside Latin-1.

    A line feed is Return and a tab is Tab; other control characters raise `AgentError`.
    """
    if character in _CONTROL_KEYS and character in "\n\r\t\b ":
        return _NAMED[_CONTROL_KEYS[character]]
    code = ord(character)
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:
        raise AgentError(f"character U+{code:04X} cannot be typed")
    return code if code < 0x100 else 0x01000000 + code
