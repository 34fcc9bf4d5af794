"""UI-TARS: a thought, then "Action:" with calls such as `click(start_box='<|box_start|>(235,512)<|box_end|>')`.

The three formats differ only in how a point is written: `uitars_1_0` in box tokens, 0 to 1000 of the screen;
`uitars_1_5` in pixels of the image as resized by Qwen2.5-VL; `uitars_point` between `<point>` tags, 0 to 1000. Each
accepts all of these.

Sources: UI-TARS `codes/ui_tars/prompt.py`, `codes/ui_tars/action_parser.py` and `README_v1.md`, OSWorld
`mm_agents/prompts.py`, `mm_agents/uitars15_v1.py` and `uitars15_v2.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import reply_sections
from deskhand.actions.formats.arg_types import TEXT, ArgType, Parameter, direction, keys_joined, number, quoted
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat, CallReader, CallSpec, amount_lost, write_one_way
from deskhand.actions.formats.call_parser import MAX_STATEMENTS, ParsedCall
from deskhand.actions.formats.limits import check_key, check_number, check_text, truncate_repr
from deskhand.actions.formats.pyautogui_gestures import write_bare
from deskhand.actions.formats.smart_resize import resized_size
from deskhand.actions.ops import REL_1000, Space
from deskhand.errors import AgentError, ParseError

NOTCHES = 5
"""Wheel notches of one scroll in UI-TARS' conversion to PyAutoGUI."""
WAIT_SECONDS = 5.0
"""Duration of `wait()` according to the prompt."""

_NUMBER = r"(-?\d{1,20}(?:\.\d{1,20})?(?:e-?\d{1,3})?)"
_PAIR = rf"\s*{_NUMBER}\s*,\s*{_NUMBER}\s*"
_PLACE = re.compile(
    rf"(?:<\|box_start\|>)?\({_PAIR}(?:,{_PAIR})?\)(?:<\|box_end\|>)?|\[{_PAIR}(?:,{_PAIR})?\]"
    rf"|<point>\s*{_NUMBER}\s+{_NUMBER}\s*</point>|<bbox>\s*{_NUMBER}\s+{_NUMBER}(?:\s+{_NUMBER}\s+{_NUMBER})?\s*</bbox>"
)

_WHITE_SPACE = re.compile(r"\s*")
_HEAD = re.compile(r"([A-Za-z_]\w{0,63})[ \t]*+\(\s*+")
_ARGUMENT = re.compile(r"([A-Za-z_]\w{0,63})\s*+=\s*+(['\"])")
_END = re.compile(r"\)[ \t]*+(?:#[^\r\n]*+)?(?=[\r\n]|\Z)")
_LAST = re.compile(r"\s*+,?\s*+\)[ \t]*+(?:#[^\r\n]*+)?(?=[\r\n]|\Z)")
_MORE = re.compile(r"\s*+,\s*+(?=([A-Za-z_]\w{0,63})\s*+=\s*+['\"])")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|\r\n|.)", re.DOTALL)
_PLAIN_ESCAPES = {
    **dict(zip("ntrbfav\\'\"", "\n\t\r\b\f\a\v\\'\"", strict=True)),
    **dict.fromkeys(("\n", "\r", "\r\n"), ""),
}
_MAX_ARGUMENTS = 8


def read_place(name: str, value: Any) -> tuple[float, float]:
    """Read a point, or the center of a box."""
    found = _PLACE.fullmatch(check_text(name, value).strip())
    if found is None:
        raise AgentError(f"{name} must be a place such as (235,512), not {truncate_repr(value)}")
    numbers = [
        check_number(name, float(part) if "." in part or "e" in part else int(part))
        for part in found.groups()
        if part is not None
    ]
    if max(numbers) <= 1 and any(isinstance(each, float) for each in numbers):
        raise AgentError(f"{name} is not a share of the screen; write a place such as (235,512)")
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    return (numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2


def _finished(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """End the episode; `content` is the answer."""
    program.add(ir.Answer(values["text"]) if "text" in values else ir.Done(), call.span)


def _calls(start: str, end: str, shape: str) -> tuple[CallSpec, ...]:
    """Return the calls, with points formatted as `shape` under the names `start` and `end`."""

    def write_place(place: tuple[float, float]) -> str:
        return quoted(shape.format(number(place[0]), number(place[1])))

    place = ArgType(read_place, write_place)
    starts, endpoints = {"start_box", "start_point", "point"}, {"end_box", "end_point"}
    there = Parameter(start, place, "x,y", required=True, aliases=tuple(starts - {start}))
    maybe = replace(there, required=False)
    drag_start = replace(there, name=start.replace("point", "start_point"), aliases=tuple(starts))
    drag_end = Parameter(end, place, "x2,y2", required=True, aliases=tuple(endpoints))
    one_key = Parameter(
        "key", ArgType(lambda name, value: check_key(value), lambda key: quoted(check_key(key))), "key", required=True
    )
    first, second = shape.format("x1", "y1"), shape.format("x2", "y2")
    wheel = Parameter("direction", direction(("down", "up", "right", "left"), NOTCHES), "dx,dy", required=True)
    content = Parameter("content", TEXT, "text", aliases=("text",))
    some_content = replace(content, required=True)
    chord = Parameter("key", keys_joined(" +"), "keys", required=True, aliases=("hotkey",))
    about_hotkey = "keys with a space between, lower case, 3 at most"
    about_type = "with the escapes \\' \\\" \\n; \\n at the end submits"
    about_end = "done; content is the answer, if any"
    scroll = f"scroll({start}='{first}', direction='down or up or right or left')"
    drag = f"drag({drag_start.name}='{first}', {end}='{second}')"
    any_time, no_reason = "any time becomes 5 seconds", "the reason is left out"
    return (
        CallSpec("click", ir.Click, "", there, offer=f"click({start}='{first}')"),
        CallSpec("left_single", ir.Click, "", there, parse_only=True),
        CallSpec("left_double", ir.Click, "", there, offer=f"left_double({start}='{first}')", count=2),
        CallSpec("right_single", ir.Click, "", there, offer=f"right_single({start}='{first}')", button="right"),
        CallSpec("hover", ir.Move, "", there),
        CallSpec("drag", ir.Drag, "", drag_start, drag_end, offer=drag),
        CallSpec("select", ir.Drag, "", drag_start, drag_end, parse_only=True),
        CallSpec("hotkey", ir.Key, about_hotkey, chord, offer="hotkey(key='ctrl c')"),
        CallSpec("keydown", ir.KeyDown, "", one_key),
        CallSpec("press", ir.KeyDown, "", one_key, parse_only=True),
        CallSpec("keyup", ir.KeyUp, "", one_key),
        CallSpec("release", ir.KeyUp, "", one_key, parse_only=True),
        CallSpec("type", ir.Type, about_type, some_content, offer="type(content='xxx')"),
        CallSpec("scroll", ir.Scroll, "", maybe, wheel, write=write_one_way, offer=scroll, loss=amount_lost(NOTCHES)),
        CallSpec("wait", ir.Wait, "5 seconds", write=write_bare, offer="wait()", loss=any_time, seconds=WAIT_SECONDS),
        CallSpec(
            "finished", ir.Done, about_end, content, read=_finished, write=write_bare, offer="finished(content='xxx')"
        ),
        CallSpec("finished", ir.Answer, "", some_content),
        CallSpec("call_user", ir.Fail, "cannot be done", write=write_bare, offer="call_user()", loss=no_reason),
    )


def _parse_calls(text: str, start: int, end: int, names: Container[str]) -> list[ParsedCall]:
    """Parse the calls in `text[start:end]`, one per line; `names` are the known arguments.

    Their texts may contain unescaped quotes: a text ends at the quote that is followed by the end of the call's line or
    by another known argument. Escapes are those of Python strings; a line break inside a text is allowed. Anything else
    raises `ParseError`.
    """
    calls: list[ParsedCall] = []
    position = _end_of(_WHITE_SPACE, text, start, end)
    while position < end:
        if len(calls) == MAX_STATEMENTS:
            raise ParseError((position, end), f"more than {MAX_STATEMENTS} actions")
        call = _parse_call(text, position, end, names)
        calls.append(call)
        position = _end_of(_WHITE_SPACE, text, call.span[1], end)
    return calls


def _parse_call(text: str, start: int, end: int, names: Container[str]) -> ParsedCall:
    head = _HEAD.match(text, start, end)
    if head is None:
        raise ParseError((start, end), "expected an action such as wait()")
    named: list[tuple[str, str]] = []
    position = head.end()
    closed = _END.match(text, position, end)
    while closed is None:
        argument = _ARGUMENT.match(text, position, end)
        if argument is None or len(named) == _MAX_ARGUMENTS:
            raise ParseError((position, end), f"{head[1]}: expected name='text', or ) at the end of the line")
        close, position, last = _find_end(text, argument.end(), end, argument[2], names)
        named.append((argument[1], _ESCAPE.sub(_character, text[argument.end() : close])))
        if last:
            break
    else:
        position = closed.end()
    if len({name for name, _ in named}) < len(named):
        raise ParseError((start, position), f"{head[1]}: an argument is given twice")
    return ParsedCall(head[1], (), tuple(named), (start, position))


def _find_end(text: str, start: int, end: int, mark: str, names: Container[str]) -> tuple[int, int, bool]:
    """Return the end of the text, the position to continue from, and whether the call ends there."""
    quote = text.find(mark, start, end)
    while quote >= 0:
        slashes = quote
        while slashes > start and text[slashes - 1] == "\\":
            slashes -= 1
        if (quote - slashes) % 2 == 0:
            last = _LAST.match(text, quote + 1, end)
            if last is not None:
                return quote, last.end(), True
            more = _MORE.match(text, quote + 1, end)
            if more is not None and more[1] in names:
                return quote, more.end(), False
        quote = text.find(mark, quote + 1, end)
    raise ParseError(
        (start - 1, end), f"the text does not end; close it with {mark} and the call with ) at the end of the line"
    )


def _character(escape: re.Match[str]) -> str:
    found = escape[1]
    if found in _PLAIN_ESCAPES:
        return _PLAIN_ESCAPES[found]
    is_hex = found[0] in "xuU" and len(found) > 1
    code = int(found[1:], 16) if is_hex else int(found, 8) if found[0] in "01234567" else -1
    return chr(code) if 0 <= code <= 0x10FFFF else escape[0]


def _end_of(pattern: re.Pattern[str], text: str, start: int, end: int) -> int:
    found = pattern.match(text, start, end)
    return found.end() if found else start


def _find(text: str, names: Container[str]) -> list[ParsedCall]:
    """Return the calls after "Action:", or of a reply of calls alone; `names` are the known arguments."""
    start = reply_sections.end_of_reasoning(text)
    mark = reply_sections.after_mark(text, start)
    begin, end = reply_sections.trimmed(text, start if mark is None else mark, len(text))
    if mark is not None and text.endswith("```", begin, end) and text.count("```", start, mark) == 1:
        begin, end = reply_sections.trimmed(text, begin, end - 3)
    if begin == end:
        raise ParseError((start, len(text)), "no action found; write it behind Action:")
    return _parse_calls(text, begin, end, names)


_COORDINATES = {
    "relative": "x runs from 0 to {0.width:g} over the screen's width, y from 0 to {0.height:g} over its height.",
    "pixels": "x and y are pixels of the image, which is {0.width:g}x{0.height:g}; (0, 0) is the top left corner.",
}


def _introduction(view: ScreenView, space: Space) -> str:
    return (
        "You are a GUI agent: you get a task, your action history and screenshots, and do the next action.\n"
        f"{_COORDINATES[space.kind].format(space)}\n\n"
        "## Output Format\n```\nThought: ...\nAction: ...\n```\n\n## Action Space\n"
    )


def _build_format(name: str, specs: tuple[CallSpec, ...], space: Callable[[ScreenView], Space]) -> CallActionFormat:
    parameters = [parameter for spec in specs for parameter in spec.parameters]
    names = frozenset(name for parameter in parameters for name in (parameter.name, *parameter.aliases))
    return CallActionFormat(
        name=name,
        specs=specs,
        space=space,
        find=lambda text: _find(text, names),
        layout=lambda lines, ops: "Action: " + "\n\n".join(lines),
        introduction=_introduction,
        closing=(
            "\n## Note\n- Sum up the next action and its target in one line in `Thought`.\n"
            "- An empty line parts two actions."
        ),
        notes={
            ir.Click: "at a place: left one or two times, right one time; no keys held",
            ir.Drag: "two points, left button, no keys held",
            ir.Move: "`hover`, which the prompt does not offer",
            ir.KeyDown: "`keydown`, which the prompt does not offer",
            ir.KeyUp: "`keyup`, which the prompt does not offer",
        },
    )


_BOXES = _calls("start_box", "end_box", "<|box_start|>({},{})<|box_end|>")
V1_0 = _build_format("uitars_1_0", _BOXES, lambda view: REL_1000)
V1_5 = _build_format("uitars_1_5", _BOXES, lambda view: resized_size(view, min_pixels=100 * 28 * 28))
POINT = _build_format("uitars_point", _calls("point", "end_point", "<point>{} {}</point>"), lambda view: REL_1000)
