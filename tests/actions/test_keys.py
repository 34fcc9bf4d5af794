"""Key names, aliases and keysyms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from Xlib import XK

from deskhand.actions import keys
from deskhand.errors import AgentError

X_NAMES = {
    "enter": "Return", "esc": "Escape", "pageup": "Page_Up", "pagedown": "Page_Down", "ctrl": "Control_L",
    "shift": "Shift_L", "alt": "Alt_L", "super": "Super_L", "backspace": "BackSpace", "delete": "Delete", "tab": "Tab",
    "home": "Home", "end": "End", "up": "Up", "down": "Down", "left": "Left", "right": "Right", "insert": "Insert",
    "capslock": "Caps_Lock", "menu": "Menu", "printscreen": "Print", "space": "space", "numenter": "KP_Enter",
    "num7": "KP_7", "numadd": "KP_Add", "f1": "F1", "f12": "F12", "f24": "F24", "ctrlright": "Control_R",
}  # fmt: skip


@pytest.mark.parametrize(("name", "x_name"), X_NAMES.items())
def test_canonical_names_have_the_keysyms_of_x(name, x_name):
    assert keys.keysym(name) == XK.string_to_keysym(x_name)


@pytest.mark.parametrize(
    ("alias", "name"),
    [("Return", "enter"), ("Page_Down", "pagedown"), ("Control_L", "ctrl"), ("ArrowUp", "up"), ("CMD", "super"),
     ("Escape", "esc"), ("kp_5", "num5"), ("altgr", "altright"), ("plus", "+"), ("\n", "enter"), ("CTRL", "ctrl"),
     (" ", "space"), ("win", "super")],
)  # fmt: skip
def test_aliases_lead_to_one_canonical_name(alias, name):
    assert keys.canonical(alias) == name


def test_every_alias_leads_to_a_key():
    for alias in keys._ALIASES:
        assert keys.keysym(alias) > 0


@pytest.mark.parametrize("name", ["", "foo", "ctrl+c", "\x00", "-\x01", "_\x7f", "-\ud800", "f25", "enterr"])
def test_an_unknown_key_is_an_agent_error_that_names_it(name):
    with pytest.raises(AgentError) as caught:
        keys.canonical(name)
    assert repr(name) in str(caught.value)


def test_a_single_character_keeps_its_case():
    assert keys.canonical("A") == "A"
    assert keys.keysym("A") != keys.keysym("a")


@given(st.characters(exclude_categories=("Cc", "Cs")))
def test_every_character_has_a_keysym_that_stands_for_it(character):
    symbol = keys.character_keysym(character)
    assert chr(symbol & 0x00FFFFFF) == character
    assert symbol < 0x100 or symbol & 0x01000000


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x9f", "\ud800"])
def test_control_characters_cannot_be_typed(character):
    with pytest.raises(AgentError):
        keys.character_keysym(character)


@pytest.mark.parametrize("name", sorted(keys.DEAD_KEYS))
def test_dead_keys_are_known_by_their_x_names_and_offered_by_nobody(name):
    XK.load_keysym_group("xkb")
    x_name = f"dead_{name.removeprefix('dead')}"
    assert keys.canonical(x_name) == name
    assert keys.keysym(x_name) == XK.string_to_keysym(x_name)
    assert name not in keys.NAMES
