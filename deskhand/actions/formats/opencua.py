"""OpenCUA and Kimi: a thought, then PyAutoGUI code in a code block, with additional functions of `computer`.

`opencua_relative` uses fractions of the screen, 0 to 1; `opencua_qwen25` uses pixels of the image as resized by
Qwen2.5-VL, also for values within 0..1. `kimi` (Kimi-VL, Kimi K2.5) uses fractions; it has no `computer.triple_click`,
and its reasoning may stand between `◁think▷` and `◁/think▷`. EvoCUA's prompt S1 is `opencua_qwen25`.

Sources: OSWorld `mm_agents/opencua/prompts.py` and `opencua_agent.py`, OpenCUA `model/README.md`, AgentNetBench
samples; `mm_agents/kimi/kimi_agent.py` as in mrwwk/DeskCraft at 3e11457c; `mm_agents/evocua/prompts.py` of
meituan/EvoCUA at 4a0ad5fd.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import pyautogui
from deskhand.actions.formats.arg_types import TEXT, Parameter, choice
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat, CallReader, CallSpec, arguments
from deskhand.actions.formats.call_parser import ParsedCall
from deskhand.actions.formats.pyautogui import KEY_CALLS, POINTER_CALLS, X_NEEDED, Y_NEEDED
from deskhand.actions.formats.pyautogui_gestures import LIST_OF_KEYS
from deskhand.actions.formats.reply_sections import end_of_reasoning
from deskhand.actions.formats.smart_resize import resized_size
from deskhand.actions.ops import REL_1, Op, Point, Space
from deskhand.errors import ParseError

WAIT_SECONDS = 20.0
"""Documented duration of `computer.wait`."""
_STATUS = Parameter(
    "status", choice({"success": "success", "failure": "failure", "fail": "failure"}), "status", required=True
)
_ENDS = (_STATUS, Parameter("answer", TEXT, "answer"))
_THINK, _END_OF_THINK = "◁think▷", "◁/think▷"
"""Marks of Kimi-VL's reasoning."""
_CODE_HEADING = re.compile(r"^#++[ \t]*+code[ \t]*+:?[ \t]*+$", re.IGNORECASE | re.MULTILINE)


def _terminate(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """End with success and an optional answer, or with failure and an optional reason."""
    if values["status"] == "failure":
        program.add(ir.Fail(values.get("answer", "")), call.span)
    elif "answer" in values:
        program.add(ir.Answer(values["answer"]), call.span)
    else:
        program.add(ir.Done(), call.span)


def _write_terminate(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str] | None:
    values = {"status": "failure" if isinstance(op, ir.Fail) else "success"}
    if isinstance(op, ir.Answer):
        values["answer"] = op.text
    elif isinstance(op, ir.Fail) and op.reason:
        values["answer"] = op.reason
    return [f"{spec.call}({arguments(spec, values)})"]


def _not_in_prompt(spec: CallSpec) -> CallSpec:
    hidden = copy(spec)
    hidden.example = None
    return hidden


_ABOUT_WAIT = f"wait {WAIT_SECONDS:g} seconds"
_ABOUT_ANSWER = "finished, with the answer in words"
_TRIPLE_CLICK = ir.Click(Point(0.5, 0.4, REL_1), count=3)
_TRIPLE_CLICKS = (
    CallSpec("computer.triple_click", _TRIPLE_CLICK, "", X_NEEDED, Y_NEEDED, count=3),
    CallSpec("computer.tripleClick", ir.Click, "", X_NEEDED, Y_NEEDED, parse_only=True, count=3),
    *(_not_in_prompt(spec) if spec.call == "pyautogui.tripleClick" else spec for spec in POINTER_CALLS),
)
_TYPING = pyautogui.typing_calls(named=True, keys=Parameter("keys", LIST_OF_KEYS, "keys", required=True, variadic=True))
_KIMI_TYPING = pyautogui.typing_calls(named=False, keys=pyautogui.KEYS_IN_TURN)
_OTHERS = (
    *KEY_CALLS,
    CallSpec("computer.wait", ir.Wait, _ABOUT_WAIT, parse_only=True, offer="computer.wait()", seconds=WAIT_SECONDS),
    CallSpec("computer.terminate", ir.Done(), "the task is finished", *_ENDS, read=_terminate, write=_write_terminate),
    CallSpec("computer.terminate", ir.Answer("42"), _ABOUT_ANSWER, *_ENDS, write=_write_terminate),
    CallSpec("computer.terminate", ir.Fail(), "the task cannot be done", *_ENDS, write=_write_terminate),
)


def _find(text: str) -> list[ParsedCall]:
    return _find_code(text, end_of_reasoning(text))


def _find_kimi(text: str) -> list[ParsedCall]:
    """Skip Kimi-VL's reasoning too. Raises `ParseError` if it is not closed."""
    begin, end = text.find(_THINK), text.find(_END_OF_THINK)
    if begin >= 0 and not text[:begin].strip() and end < 0:
        raise ParseError((begin, len(text)), f"the reasoning does not end; close it with {_END_OF_THINK} and act")
    return _find_code(text, end + len(_END_OF_THINK)) if end >= 0 else _find(text)


def _find_code(text: str, start: int) -> list[ParsedCall]:
    for heading in _CODE_HEADING.finditer(text, start):
        start = heading.end()
    return pyautogui.find_code(text, start, replace(pyautogui.GRAMMAR, words=frozenset()))


def _layout(lines: list[str], ops: list[Op]) -> str:
    return f"## Code:\n{pyautogui.block_of(lines)}"


_SECTIONS = (
    "For each step write a short thought under ## Thought:, what you do in one sentence under ## Action:, and\n"
    "under ## Code: one ```python block with these calls and plain arguments, one a line.\n"
)
_KIMI_SECTIONS = (
    "For each step think first, then write what you do in one sentence under ## Action:, and under ## Code: one\n"
    "```python block with these calls and plain arguments, one a line.\n"
)
_SHARES = (
    "x and y are shares of the screen's width and height: (0, 0) is the top left corner, (1, 1) the bottom right one."
)


def _introduction(coordinates: str, sections: str = _SECTIONS) -> Callable[[ScreenView, Space], str]:
    def introduction(view: ScreenView, space: Space) -> str:
        return sections + coordinates.format(width=space.width, height=space.height)

    return introduction


RELATIVE = CallActionFormat(
    name="opencua_relative",
    specs=(*_TRIPLE_CLICKS, *_TYPING, *_OTHERS),
    space=lambda view: REL_1,
    find=_find,
    layout=_layout,
    introduction=_introduction(_SHARES),
    notes=pyautogui.NOTES,
)
QWEN25 = replace(
    RELATIVE,
    name="opencua_qwen25",
    space=resized_size,
    introduction=_introduction(
        "x and y are pixels of the image that you see, {width:g}x{height:g}; (0, 0) is the top left corner."
    ),
)
KIMI = replace(
    RELATIVE,
    name="kimi",
    specs=(*POINTER_CALLS, *_KIMI_TYPING, *_OTHERS),
    find=_find_kimi,
    introduction=_introduction(_SHARES, _KIMI_SECTIONS),
)
