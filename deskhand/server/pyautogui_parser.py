"""Translate `python -c` programs of pyautogui calls to ops, without running them.

OSWorld's clients send every action as such a program. Performed as ops it takes 1 ms instead of 300 ms. Anything but
plain calls with literal arguments is left to the guest's own Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat
from deskhand.actions.formats.call_parser import parse_calls
from deskhand.actions.formats.pyautogui import GRAMMAR, KEY_CALLS, KEYS_IN_TURN, POINTER_CALLS, typing_calls
from deskhand.actions.ops import Op
from deskhand.errors import AgentError

PYTHON_PROGRAMS = ("python", "python3", "/usr/bin/python3", "/usr/bin/python")
_GRAMMAR = replace(GRAMMAR, words=frozenset())
_CODE = CallActionFormat(
    name="pyautogui code",
    specs=(*POINTER_CALLS, *typing_calls(named=False, keys=KEYS_IN_TURN), *KEY_CALLS),
    space=lambda view: view.screen,
    find=lambda text: parse_calls(text, 0, len(text), _GRAMMAR),
    layout=lambda lines, ops: "\n".join(lines),
    introduction=lambda view, space: "",
)


def parse_pyautogui(code: str, width: int, height: int) -> list[Op]:
    """Return the ops of the code for a screen of `width` x `height` pixels. Raises `AgentError` for anything but
    plain calls."""
    return _CODE.parse(code, ScreenView.of_screen(width, height))


def ops_from_argv(argv: Sequence[str], width: int, height: int) -> list[Op] | None:
    """Return the ops that `argv` amounts to, or None if it is not a program of plain pyautogui calls."""
    if len(argv) != 3 or argv[0] not in PYTHON_PROGRAMS or argv[1] != "-c" or "pyautogui" not in argv[2]:
        return None
    try:
        return parse_pyautogui(argv[2], width, height)
    except AgentError:
        return None
