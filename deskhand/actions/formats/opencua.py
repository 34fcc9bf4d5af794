"""OpenCUA: a thought, then PyAutoGUI code in a code block, with three additional functions of `computer`.

`opencua_relative` uses fractions of the screen, 0 to 1; `opencua_qwen25` uses pixels of the image as resized by
Qwen2.5-VL, also for values within 0..1.

Sources: OSWorld `mm_agents/opencua/prompts.py` and `opencua_agent.py`, OpenCUA `model/README.md`, AgentNetBench
samples.
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

WAIT_SECONDS = 20.0
"""Documented duration of `computer.wait`."""
_STATUS = Parameter(
    "status", choice({"success": "success", "failure": "failure", "fail": "failure"}), "status", required=True
)
_ENDS = (_STATUS, Parameter("answer", TEXT, "answer"))
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
_CALLS = (
    CallSpec("computer.triple_click", _TRIPLE_CLICK, "", X_NEEDED, Y_NEEDED, count=3),
    CallSpec("computer.tripleClick", ir.Click, "", X_NEEDED, Y_NEEDED, parse_only=True, count=3),
    *(_not_in_prompt(spec) if spec.call == "pyautogui.tripleClick" else spec for spec in POINTER_CALLS),
    *pyautogui.typing_calls(named=True, keys=Parameter("keys", LIST_OF_KEYS, "keys", required=True, variadic=True)),
    *KEY_CALLS,
    CallSpec("computer.wait", ir.Wait, _ABOUT_WAIT, parse_only=True, offer="computer.wait()", seconds=WAIT_SECONDS),
    CallSpec("computer.terminate", ir.Done(), "the task is finished", *_ENDS, read=_terminate, write=_write_terminate),
    CallSpec("computer.terminate", ir.Answer("42"), _ABOUT_ANSWER, *_ENDS, write=_write_terminate),
    CallSpec("computer.terminate", ir.Fail(), "the task cannot be done", *_ENDS, write=_write_terminate),
)


def _find(text: str) -> list[ParsedCall]:
    start = end_of_reasoning(text)
    for heading in _CODE_HEADING.finditer(text, start):
        start = heading.end()
    return pyautogui.find_code(text, start, replace(pyautogui.GRAMMAR, words=frozenset()))


def _layout(lines: list[str], ops: list[Op]) -> str:
    return f"## Code:\n{pyautogui.block_of(lines)}"


def _introduction(coordinates: str) -> Callable[[ScreenView, Space], str]:
    def introduction(view: ScreenView, space: Space) -> str:
        return (
            "For each step write a short thought under ## Thought:, what you do in one sentence under ## Action:, and\n"
            "under ## Code: one ```python block with these calls and plain arguments, one a line.\n"
            + coordinates.format(width=space.width, height=space.height)
        )

    return introduction


RELATIVE = CallActionFormat(
    name="opencua_relative",
    specs=_CALLS,
    space=lambda view: REL_1,
    find=_find,
    layout=_layout,
    introduction=_introduction(
        "x and y are shares of the screen's width and height: (0, 0) is the top left corner, (1, 1) "
        "the bottom right one."
    ),
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
