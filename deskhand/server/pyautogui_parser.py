"""`python -c` with pyautogui in it, read as ops. Invariant: code is looked at and never run here; whatever is more than calls with
literal arguments is left to the guest's own Python.

OSWorld's clients send every action as such a program. Read and performed by the X server itself it takes a millisecond where the
program takes a third of a second, and does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat
from deskhand.actions.formats.call_parser import parse_calls
from deskhand.actions.formats.pyautogui import GRAMMAR, KEY_ROWS, KEYS_IN_TURN, POINTER_ROWS, typing_rows
from deskhand.actions.ops import Op
from deskhand.errors import AgentError

PYTHONS = ("python", "python3", "/usr/bin/python3", "/usr/bin/python")
_GRAMMAR = replace(GRAMMAR, words=frozenset())
_CODE = CallActionFormat(
    name="pyautogui code",
    rows=(*POINTER_ROWS, *typing_rows(named=False, keys=KEYS_IN_TURN), *KEY_ROWS),
    space=lambda view: view.screen,
    find=lambda text: parse_calls(text, 0, len(text), _GRAMMAR),
    lay_out=lambda lines, ops: "\n".join(lines),
    introduction=lambda view, space: "",
)


def parse_pyautogui(code: str, width: int, height: int) -> list[Op]:
    """The ops of lines of code for a screen of `width` x `height` pixels. Raises `AgentError` for all but plain calls."""
    return _CODE.parse(code, ScreenView.of_screen(width, height))


def ops_from_argv(argv: Sequence[str], width: int, height: int) -> list[Op] | None:
    """The ops that `argv` comes to on a screen of `width` x `height` pixels; None when it is anything else."""
    if len(argv) != 3 or argv[0] not in PYTHONS or argv[1] != "-c" or "pyautogui" not in argv[2]:
        return None
    try:
        return parse_pyautogui(argv[2], width, height)
    except AgentError:
        return None
