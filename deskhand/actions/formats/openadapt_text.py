"""OpenAdapt's text DSL: a thought and an action such as `CLICK(x=0.35, y=0.42)`, with shares of the screen, 0 to 1.

Invariant: an action is read whole or not at all. OpenAdapt's own parsers take what they do not know for `DONE()`, centre a click
without a place and clip one that is off the screen; here each of these is an error.

Shapes: openadapt-evals `training/standalone/prompt.py`, `adapters/verl_env.py`, `agents/base.py` and `demo_library/README.md`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from deskhand.actions import ops as ir
from deskhand.actions.formats import code_blocks
from deskhand.actions.formats.arg_types import (
    DOUBLE_QUOTED,
    NUMBER,
    Parameter,
    direction,
    keys_joined,
    point_parameters,
)
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat, CallSpec, amount_lost, write_one_way
from deskhand.actions.formats.call_parser import CallGrammar, ParsedCall, parse_calls
from deskhand.actions.formats.pyautogui_gestures import KEYS
from deskhand.actions.ops import REL_1, Point, Space
from deskhand.errors import ParseError

NOTCHES = 3
"""What OpenAdapt's environment turns the wheel for one SCROLL."""
_POINT, _MAYBE_POINT = point_parameters(required=True), point_parameters()
_START = tuple(replace(parameter, aliases=(f"start_{parameter.name}",)) for parameter in _POINT)
_END = (Parameter("end_x", NUMBER, "x2", required=True), Parameter("end_y", NUMBER, "y2", required=True))
_DIRECTION = Parameter("direction", direction(("up", "down", "left", "right"), NOTCHES, '"'), "dx,dy")
_TEXT = Parameter("text", DOUBLE_QUOTED, "text", required=True)
_CHORD = Parameter("key", keys_joined("+", '"'), "keys", required=True)
_SECONDS = Parameter("seconds", NUMBER, "seconds", named=False)
_ANSWER = Parameter("answer", DOUBLE_QUOTED, "text", required=True, named=False)
_CENTRE, _THERE = Point(0.35, 0.42, REL_1), Point(0.8, 0.7, REL_1)

_ROWS = (
    CallSpec("CLICK", ir.Click(_CENTRE), "", *_POINT),
    CallSpec("RIGHT_CLICK", ir.Click(_CENTRE, "right"), "", *_POINT, button="right"),
    CallSpec("DOUBLECLICK", ir.Click(_CENTRE, count=2), "", *_POINT, count=2),
    CallSpec("DOUBLE_CLICK", ir.Click, "", *_POINT, only_read=True, count=2),
    CallSpec("HOVER", ir.Move(_CENTRE), "move the pointer", *_POINT),
    CallSpec("DRAG", ir.Drag((_CENTRE, _THERE)), "", *_START, *_END),
    CallSpec("TYPE", ir.Type("hello"), "\\n is the Enter key", _TEXT),
    CallSpec("KEY", ir.Key(("ctrl", "a")), "a key, or keys pressed together", _CHORD),
    CallSpec("HOTKEY", ir.Key, "", Parameter("keys", KEYS, "keys", required=True, many=True), only_read=True),
    CallSpec(
        "SCROLL",
        ir.Scroll(dy=NOTCHES, point=Point(0.5, 0.5, REL_1)),
        "up, down, left or right",
        *_MAYBE_POINT,
        _DIRECTION,
        write=write_one_way,
        loss=amount_lost(NOTCHES),
        dy=NOTCHES,
    ),
    CallSpec("WAIT", ir.Wait(1.5), "seconds; 1 if left out", _SECONDS),
    CallSpec("ANSWER", ir.Answer("42"), "finished, with the answer in words", _ANSWER),
    CallSpec("DONE", ir.Done(), "the task is finished"),
)

_ACTION_AT_LINE = re.compile(r"^[ \t]*(?:" + "|".join(row.call for row in _ROWS) + r")[ \t]*\(", re.MULTILINE)


def _find(text: str) -> list[ParsedCall]:
    """The calls behind "Action:", or from the first line on that begins with one."""
    start = code_blocks.end_of_reasoning(text)
    mark = code_blocks.after_mark(text, start)
    if mark is None:
        mark = code_blocks.first_line(text, start, _ACTION_AT_LINE)
    if mark is None:
        raise ParseError((start, len(text)), f"no action found; known: {DIALECT.known}")
    blocks = code_blocks.code_blocks(text, mark)
    if blocks and text[mark : blocks[0].opening].strip():
        raise ParseError((mark, blocks[0].opening), "an action outside the code block; write it in the block")
    if blocks:
        code_blocks.check_outside(text, blocks[0].opening, blocks, _ACTION_AT_LINE)
    spans = [(block.start, block.end) for block in blocks] or [(mark, len(text))]
    return [
        call
        for begin, end in spans
        for call in parse_calls(text, *code_blocks.trimmed(text, begin, end), CallGrammar())
    ]


def _introduction(view: ScreenView, space: Space) -> str:
    return (
        "Reply with two lines, Thought: and why, then Action: and one of these actions.\n"
        "x and y are shares of the screen's width and height: (0, 0) is the top left corner, (1, 1) the bottom right one."
    )


DIALECT = CallActionFormat(
    name="openadapt_text",
    rows=_ROWS,
    space=lambda view: REL_1,
    find=_find,
    lay_out=lambda lines, ops: "Action: " + "\n".join(lines),
    introduction=_introduction,
    notes={
        ir.Click: "at a place: left one or two times, right one time; no keys held",
        ir.Drag: "two points, left button, no keys held",
    },
)
