"""ScaleCUA: `<think>`, `<operation>`, then calls in `<action>`, with PyAutoGUI's names and no module.

x and y are pixels of the image as resized by Qwen2.5-VL with ScaleCUA's bound. `terminate` with `failure` means that
the task cannot be done, and `response` is an answer; `call_user` is refused.

Source: OpenGVLab/ScaleCUA at 5d92feea, `evaluation/OSWorld/mm_agents/scalecua_agent.py` and `prompts.py`,
`playground/agents/native_agent.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import reply_sections
from deskhand.actions.formats.arg_types import INTEGER, INTEGER_UP, NUMBER, TEXT, ArgType, Parameter, choice
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat, CallReader, CallSpec, arguments
from deskhand.actions.formats.call_parser import CallGrammar, ParsedCall, parse_calls
from deskhand.actions.formats.pyautogui import KEYS_IN_TURN, X_NEEDED, Y_NEEDED, X, Y
from deskhand.actions.formats.pyautogui_gestures import (
    BUTTON,
    KEY,
    KEYS,
    PRESSES,
    drag_to,
    press,
    write_drag,
    write_press,
)
from deskhand.actions.formats.smart_resize import resized_size
from deskhand.actions.ops import REL_1, Op, Point, Space
from deskhand.errors import ParseError

MAX_PIXELS = 2_109_744
"""Area of the largest image: 1920x1080 after resizing."""
WAIT_SECONDS = 3
_BEGIN, _END = "<action>", "</action>"


def _resized(view: ScreenView) -> Space:
    return resized_size(view, max_pixels=MAX_PIXELS)


def _terminate(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """End with success, or with failure and an optional reason."""
    failed = values.get("status") == "failure"
    program.add(ir.Fail(values.get("info", "")) if failed else ir.Done(), call.span)


def _write_terminate(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str] | None:
    reason = {"info": op.reason} if isinstance(op, ir.Fail) and op.reason else {}
    values = {"status": "failure" if isinstance(op, ir.Fail) else "success"} | reason
    return [f"{spec.call}({arguments(spec, values)})"]


def _read_info(name: str, value: Any) -> str:
    return "" if value is None else TEXT.read(name, value)


_BUTTON = Parameter("button", BUTTON, "button")
_CLICKS = Parameter("clicks", INTEGER, "count")
_NOTCHES = Parameter("clicks", INTEGER_UP, "dy", required=True)
_KEY = Parameter("key", KEY, "key", required=True, named=False)
_ONE_KEY = Parameter("keys", KEYS, "keys", required=True, named=False)
_MESSAGE = Parameter("message", TEXT, "text", required=True, aliases=("msg",))
_SECONDS = Parameter("seconds", NUMBER, "seconds")
_ENDS = (
    Parameter("status", choice({"success": "success", "failure": "failure", "fail": "failure"}), "status"),
    Parameter("info", ArgType(_read_info, TEXT.write), "info"),
)
_CENTER, _THERE = Point(0.5, 0.4, REL_1), Point(0.7, 0.6, REL_1)
_ABOUT_CLICK = "without x and y where the pointer is; also button='middle', clicks=3"
_SPECS = (
    CallSpec("doubleClick", ir.Click(_CENTER, count=2), "", X, Y, _BUTTON, count=2),
    CallSpec("rightClick", ir.Click(_CENTER, "right"), "", X, Y, button="right"),
    CallSpec("click", ir.Click(_CENTER), _ABOUT_CLICK, X, Y, _CLICKS, _BUTTON),
    CallSpec("moveTo", ir.Move(_CENTER), "", X_NEEDED, Y_NEEDED),
    CallSpec(
        "dragTo", ir.Drag((_CENTER, _THERE)), "from the first place to the second", X_NEEDED, Y_NEEDED, _BUTTON,
        read=drag_to, write=write_drag,
    ),
    CallSpec("scroll", ir.Scroll(dy=3, point=_CENTER), "notches of the wheel; positive is up", _NOTCHES, X, Y),
    CallSpec("write", ir.Type("hello"), "", _MESSAGE),
    CallSpec(
        "press", ir.Key(("enter",)), "", _ONE_KEY, Parameter("presses", PRESSES, "presses"),
        read=press, write=write_press,
    ),
    CallSpec("hotkey", ir.Key(("ctrl", "c")), "keys pressed together", KEYS_IN_TURN),
    CallSpec("keyDown", ir.KeyDown("shift"), "", _KEY),
    CallSpec("keyUp", ir.KeyUp("shift"), "", _KEY),
    CallSpec("wait", ir.Wait, "", _SECONDS, parse_only=True, seconds=WAIT_SECONDS),
    CallSpec("wait", ir.Wait(WAIT_SECONDS), "seconds", replace(_SECONDS, required=True)),
    CallSpec("response", ir.Answer("42"), "the answer in words", Parameter("answer", TEXT, "text", required=True)),
    CallSpec("terminate", ir.Done(), "the task is finished", *_ENDS, read=_terminate, write=_write_terminate),
    CallSpec("terminate", ir.Fail(), "the task cannot be done", *_ENDS, write=_write_terminate),
    CallSpec("call_user", unsupported_reason="nobody can be asked"),
)  # fmt: skip


def _find(text: str) -> list[ParsedCall]:
    start = reply_sections.end_of_reasoning(text)
    begin = text.find(_BEGIN, start)
    if begin < 0:
        raise ParseError((start, len(text)), f"no action found; write it between {_BEGIN} and {_END}")
    end = text.rfind(_END, begin)
    if end < 0:
        raise ParseError((begin, len(text)), f"the action does not end; close it with {_END}")
    if text[end + len(_END) :].strip():
        raise ParseError((end + len(_END), len(text)), "unexpected text after the action")
    return parse_calls(text, *reply_sections.trimmed(text, begin + len(_BEGIN), end), CallGrammar())


def _layout(lines: list[str], ops: list[Op]) -> str:
    return "\n".join([_BEGIN, *lines, _END])


def _introduction(view: ScreenView, space: Space) -> str:
    return (
        "You are a GUI agent: you get a task, your action history and screenshots, and do the next action.\n"
        "Write what you think within <think></think>, what you do within <operation></operation>, and these calls,\n"
        f"one a line, within {_BEGIN}{_END}. x and y are pixels of the image that you see,\n"
        f"{space.width:g}x{space.height:g}; (0, 0) is the top left corner."
    )


FORMAT = CallActionFormat(
    name="scalecua",
    specs=_SPECS,
    space=_resized,
    find=_find,
    layout=_layout,
    introduction=_introduction,
    notes={
        **dict.fromkeys((ir.Click, ir.Drag), "left, middle and right button; no keys held"),
        ir.Scroll: "up or down; no keys held",
        **dict.fromkeys((ir.Key, ir.KeyDown, ir.KeyUp), "keys that pyautogui has a name for"),
    },
)
