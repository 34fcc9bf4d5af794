"""Names of keys in other languages: each is read back, and chords are taken apart rightly."""

import re

import pytest

from deskhand.actions import key_names
from deskhand.actions.keys import NAMES
from deskhand.errors import AgentError

FAMILIES = {
    "X11": key_names.X11,
    "PYAUTOGUI": key_names.PYAUTOGUI,
    "OPENAI": key_names.OPENAI,
    "GEMINI": key_names.GEMINI,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_name_is_read_back_and_fits_the_pattern(family):
    spelled, refused = FAMILIES[family], []
    for key in (*NAMES, *map(chr, range(0x21, 0x7F)), "é", "日"):
        try:
            name = spelled.write(key)
        except AgentError:
            refused.append(key)
            continue
        assert spelled.read(name) == key
        if key.isascii() and (family != "PYAUTOGUI" or key != "+"):
            assert re.fullmatch(spelled.pattern, name if name != "+" else "plus"), key
    uppercase = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
    assert refused == {"X11": [], "PYAUTOGUI": ["numenter"], "OPENAI": uppercase, "GEMINI": uppercase}[family]


@pytest.mark.parametrize(
    ("text", "keys"),
    [("ctrl+s", ("ctrl", "s")), ("+", ("+",)), ("ctrl++", ("ctrl", "+")), ("ctrl+plus", ("ctrl", "+")),
     ("Control_L+Alt_R+F4", ("ctrl", "altright", "f4")),
     ("Return", ("enter",)), ("KP_0", ("num0",)), ("ctrl+S", ("ctrl", "S")), ("XF86AudioMute", ("volumemute",))],
)  # fmt: skip
def test_chords_are_taken_apart(text, keys):
    assert key_names.X11.read_chord(text) == keys
    assert key_names.X11.read_chord(key_names.X11.write_chord(keys)) == keys


@pytest.mark.parametrize("text", ["", "ctrl+", "+s", "ctrl s", "ctrl-s", "ctrl+foo"])
def test_what_is_no_chord_is_an_agent_error(text):
    with pytest.raises(AgentError, match="unknown key"):
        key_names.X11.read_chord(text)


def test_capitals_mean_the_key_where_there_is_no_case():
    assert key_names.OPENAI.read("C") == key_names.GEMINI.read("C") == "c"
    assert key_names.X11.read("C") == key_names.PYAUTOGUI.read("C") == "C"
