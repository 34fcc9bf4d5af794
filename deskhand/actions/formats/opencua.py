"""OpenCUA: pyautogui code in a code block behind a thought, with three functions of its own under `computer`.

Invariant: the two dialects differ in their coordinates alone. `opencua_relative` writes shares of the screen, 0 to 1;
`opencua_qwen25` writes pixels of the image as Qwen2.5-VL resizes it. A pair within 0..1 is no exception there: it is the pixel
that it says.

Shapes: OSWorld `mm_agents/opencua/prompts.py` and `opencua_agent.py`, OpenCUA `model/README.md` and the samples of AgentNetBench.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats.arg_types import TEXT, Parameter, choice
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat, CallReader, CallSpec, arguments
from deskhand.actions.formats.call_parser import ParsedCall
from deskhand.actions.formats.code_blocks import end_of_reasoning
from deskhand.actions.formats.pyautogui import (
    GRAMMAR,
    KEY_ROWS,
    NOTES,
    POINTER_ROWS,
    X_NEEDED,
    Y_NEEDED,
    block_of,
    find_code,
    typing_rows,
)
from deskhand.actions.formats.pyautogui_gestures import LIST_OF_KEYS
from deskhand.actions.formats.smart_resize import resized_size
from deskhand.actions.ops import REL_1, Op, Point, Space

WAIT_SECONDS = 20.0
"""What `computer.wait` is said to wait."""
_STATUS = Parameter(
    "status", choice({"success": "success", "failure": "failure", "fail": "failure"}), "status", required=True
)
_ENDS = (_STATUS, Parameter("answer", TEXT, "answer"))
_CODE_HEADING = re.compile(r"^#++[ \t]*+code[ \t]*+:?[ \t]*+$", re.IGNORECASE | re.MULTILINE)


def _terminate(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """The end: with success and perhaps an answer, or with failure and perhaps its reason."""
    if values["status"] == "failure":
        program.add(ir.Fail(values.get("answer", "")), call.span)
    elif "answer" in values:
        program.add(ir.Answer(values["answer"]), call.span)
    else:
        program.add(ir.Done(), call.span)


def _write_terminate(dialect: CallActionFormat, row: CallSpec, op: Any, space: Space) -> list[str] | None:
    values = {"status": "failure" if isinstance(op, ir.Fail) else "success"}
    if isinstance(op, ir.Answer):
        values["answer"] = op.text
    elif isinstance(op, ir.Fail) and op.reason:
        values["answer"] = op.reason
    return [f"{row.call}({arguments(row, values)})"]


def _unoffered(row: CallSpec) -> CallSpec:
    """The same call, which the prompt does not show."""
    made = copy(row)
    made.example = None
    return made


_ABOUT_ANSWER = "finished, with the answer in words"
_TRIPLE_CLICK = ir.Click(Point(0.5, 0.4, REL_1), count=3)
_ROWS = (
    CallSpec("computer.triple_click", _TRIPLE_CLICK, "", X_NEEDED, Y_NEEDED, count=3),
    CallSpec("computer.tripleClick", ir.Click, "", X_NEEDED, Y_NEEDED, only_read=True, count=3),
    *(_unoffered(row) if row.call == "pyautogui.tripleClick" else row for row in POINTER_ROWS),
    *typing_rows(named=True, keys=Parameter("keys", LIST_OF_KEYS, "keys", required=True, many=True)),
    *KEY_ROWS,
    CallSpec(
        "computer.wait",
        ir.Wait,
        f"wait {WAIT_SECONDS:g} seconds",
        only_read=True,
        offer="computer.wait()",
        seconds=WAIT_SECONDS,
    ),
    CallSpec("computer.terminate", ir.Done(), "the task is finished", *_ENDS, read=_terminate, write=_write_terminate),
    CallSpec("computer.terminate", ir.Answer("42"), _ABOUT_ANSWER, *_ENDS, write=_write_terminate),
    CallSpec("computer.terminate", ir.Fail(), "the task cannot be done", *_ENDS, write=_write_terminate),
)


def _find(text: str) -> list[ParsedCall]:
    start = end_of_reasoning(text)
    for heading in _CODE_HEADING.finditer(text, start):
        start = heading.end()
    return find_code(text, start, replace(GRAMMAR, words=frozenset()))


def _lay_out(lines: list[str], ops: list[Op]) -> str:
    return f"## Code:\n{block_of(lines)}"


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
    rows=_ROWS,
    space=lambda view: REL_1,
    find=_find,
    lay_out=_lay_out,
    introduction=_introduction(
        "x and y are shares of the screen's width and height: (0, 0) is the top left corner, (1, 1) the bottom right one."
    ),
    notes=NOTES,
)
QWEN25 = replace(
    RELATIVE,
    name="opencua_qwen25",
    space=resized_size,
    introduction=_introduction(
        "x and y are pixels of the image that you see, {width:g}x{height:g}; (0, 0) is the top left corner."
    ),
)
