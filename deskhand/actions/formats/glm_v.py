"""GLM-4.5V and GLM-4.6V on a desktop: an explanation, one call in box tokens, and a memory.

A call such as `left_click(start_box='[586, 446]', element_info='OK button')` stands between `<|begin_of_box|>` and
`<|end_of_box|>`, followed by "Memory:" and a list, which is skipped; without the tokens, which a server may drop, the
call begins a line or follows "Action:". x and y are 0..999 of the screen. A place may be a box: its center.

Sources: zai-org/GLM-V at 8fc9756f, `examples/gui-agent/glm-45v/agent.md` and `gui_agent_45v.py`; the scale and
GLM-4.6V: hud-evals/hud-python, `hud/tools/computer/glm.py` at b3d9d257.
"""

from __future__ import annotations

import re
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import reply_sections
from deskhand.actions.formats.arg_types import INTEGER, TEXT, ArgType, Parameter, choice, keys_joined, number, quoted
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import (
    CallActionFormat,
    CallReader,
    CallSpec,
    arguments,
    build,
    flatten_fields,
)
from deskhand.actions.formats.call_parser import CallGrammar, ParsedCall, parse_calls
from deskhand.actions.formats.pyautogui_gestures import write_bare
from deskhand.actions.formats.uitars import read_place
from deskhand.actions.ops import REL_999, Op, Point, Space
from deskhand.actions.pointer_merge import DIRECTIONS, direction_of
from deskhand.errors import ParseError

NOTCHES = 5
"""Wheel notches of a scroll without `step`."""
WAIT_SECONDS = 5.0
_BEGIN, _END = "<|begin_of_box|>", "<|end_of_box|>"
_NAMES = (
    "left_click", "right_click", "middle_click", "hover", "left_double_click", "left_drag", "key", "type", "scroll",
    "WAIT", "DONE", "FAIL",
)  # fmt: skip
_CALL_AT_LINE = re.compile(
    rf"^[ \t]*+(?P<mark>action[ \t]*+:[ \t]*+)?(?=(?:{'|'.join(_NAMES)})[ \t]*+\()", re.IGNORECASE | re.MULTILINE
)
_MEMORY = re.compile(r"^[ \t]*+memory[ \t]*+:", re.IGNORECASE | re.MULTILINE)


def _read_place(name: str, value: Any) -> tuple[float, float]:
    """Read "[x, y]", with or without quotes."""
    return read_place(name, str(list(value)) if isinstance(value, tuple) else value)


_PLACE = ArgType(_read_place, lambda place: quoted(f"[{number(place[0])},{number(place[1])}]"))
_AT = Parameter("start_box", _PLACE, "x,y", required=True)
_TO = Parameter("end_box", _PLACE, "x2,y2", required=True)
_WHERE = Parameter("start_box", _PLACE, "x,y")
_ELEMENT = Parameter("element_info", TEXT)
_WHEEL = (
    _WHERE,
    Parameter("direction", choice({name: name for name in DIRECTIONS}), "way", required=True),
    Parameter("step", INTEGER, "step"),
    _ELEMENT,
)


def _scroll(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    across, down = DIRECTIONS[values.pop("way")]
    step = values.pop("step", NOTCHES)
    program.add(build(ir.Scroll, values | {"dx": across * step, "dy": down * step}, program.space), call.span)


def _write_scroll(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str] | None:
    if op.modifiers or op.dx or op.point is None:
        return None
    values = flatten_fields(op, space) | {"way": direction_of(op.dx, op.dy), "step": abs(op.dy)}
    return [f"{spec.call}({arguments(spec, values)})"]


_KEYS = Parameter("keys", keys_joined("+ "), "keys", required=True)
_CONTENT = Parameter("content", TEXT, "text", required=True)
_CENTER, _CORNER = Point(500, 333, REL_999), Point(250, 200, REL_999)
_ABOUT_PLACE = "element_info='...' may name the target, here and below"
_SPECS = (
    CallSpec("left_click", ir.Click(_CENTER), _ABOUT_PLACE, _AT, _ELEMENT),
    CallSpec("right_click", ir.Click(_CENTER, "right"), "", _AT, _ELEMENT, button="right"),
    CallSpec("middle_click", ir.Click(_CENTER, "middle"), "", _AT, _ELEMENT, button="middle"),
    CallSpec("hover", ir.Move(_CENTER), "move the pointer", _AT, _ELEMENT),
    CallSpec("left_double_click", ir.Click(_CENTER, count=2), "", _AT, _ELEMENT, count=2),
    CallSpec("left_drag", ir.Drag((_CENTER, _CORNER)), "from one place to the other", _AT, _TO, _ELEMENT),
    CallSpec("key", ir.Key(("ctrl", "c")), "press keys together", _KEYS),
    CallSpec("type", ir.Type("hello"), "type where the focus is", _CONTENT),
    CallSpec(
        "scroll", ir.Scroll(0, NOTCHES, _CENTER), "notches of the wheel, down or up", *_WHEEL,
        read=_scroll, write=_write_scroll,
    ),
    CallSpec(
        "WAIT", ir.Wait, "5 seconds", write=write_bare, offer="WAIT()", loss="any time becomes 5 seconds",
        seconds=WAIT_SECONDS,
    ),
    CallSpec("DONE", ir.Done, "the task is finished", write=write_bare, offer="DONE()"),
    CallSpec(
        "FAIL", ir.Fail, "the task cannot be done", write=write_bare, offer="FAIL()", loss="the reason is left out"
    ),
)  # fmt: skip


def _find(text: str) -> list[ParsedCall]:
    start = reply_sections.end_of_reasoning(text)
    begin = text.find(_BEGIN, start)
    if begin >= 0:
        end = text.rfind(_END, begin)
        if end < 0:
            raise ParseError((begin, len(text)), f"the box does not end; close it with {_END}")
        after, _ = reply_sections.trimmed(text, end + len(_END), len(text))
        if after < len(text) and not _MEMORY.match(text, after):
            raise ParseError((after, len(text)), "unexpected text after the action; only Memory: may follow")
        return _parse(text, begin + len(_BEGIN), end)
    first = reply_sections.first_line(text, start, _CALL_AT_LINE)
    if first is None:
        raise ParseError((start, len(text)), f"no action found; write it between {_BEGIN} and {_END}")
    memory = _MEMORY.search(text, first)
    return _parse(text, first, memory.start() if memory else len(text))


def _parse(text: str, start: int, end: int) -> list[ParsedCall]:
    begin, stop = reply_sections.trimmed(text, start, end)
    return parse_calls(text, begin, stop, CallGrammar())


def _layout(lines: list[str], ops: list[Op]) -> str:
    return f"{_BEGIN}{chr(10).join(lines)}{_END}\nMemory:\n[]"


def _introduction(view: ScreenView, space: Space) -> str:
    return (
        "You are a GUI agent: you get a task, your action history and screenshots, and do the next action.\n"
        f"Explain it in plain words, then write one call between {_BEGIN} and {_END}, then a line Memory: and a list\n"
        "of objects with what later steps need to know, or []. Coordinates [x,y] run from 0 to 999 over the screen's\n"
        "width and height, from the top left corner. The calls:"
    )


FORMAT = CallActionFormat(
    name="glm_v",
    specs=_SPECS,
    space=lambda view: REL_999,
    find=_find,
    layout=_layout,
    introduction=_introduction,
    notes={
        ir.Click: "at a place: left one or two times, right or middle one time; no keys held",
        ir.Drag: "two points, left button, no keys held",
        ir.Scroll: "at a place, up or down; no keys held",
    },
)
