"""Windows Agent Arena's Navi: a decision block, and a block of Python on the objects of `computer`, which is read and never run.

Invariant: what needs more than the pointer and the keys is an error that says so: element ids, what the clipboard holds, programs
and windows by name. A click has no place of its own: a move and the click right behind it are one click at that point.

Shapes: WAA `client/mm_agents/navi/gpt/planner_messages.py`, `navi/agent.py` and `vm/setup/server/computer.py`.
"""

from __future__ import annotations

import re

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
from deskhand.actions.formats.pyautogui_gestures import drag_to, write_drag, write_word
from deskhand.actions.ops import REL_1, Op, Point, Space
from deskhand.errors import AgentError, ParseError

WAIT_SECONDS = 5.0
"""What WAA's runner waits between steps, and so what the decision WAIT waits."""
NOTCHES = 3
"""WAA scrolls by 400 on Windows, where a notch is 120."""
_POINT = point_parameters(required=True)
_CENTRE, _THERE = Point(0.22, 0.75, REL_1), Point(0.35, 0.48, REL_1)
_NO_IDS = "this screen has no element ids; use computer.mouse.move_abs"
_NO_CLIPBOARD = "what the clipboard holds is not the agent's to set; select and copy on the screen"
_NO_PROGRAMS = "programs and windows are opened on the screen, by the pointer and the keys"


_TEXT = Parameter("text", DOUBLE_QUOTED, "text", required=True, named=False)
_CHORD = Parameter("key", keys_joined("+-", '"'), "keys", required=True, named=False)
_SECONDS = Parameter("seconds", NUMBER, "seconds", required=True, named=False)
_DIRECTION = Parameter("dir", direction(("up", "down"), NOTCHES, '"'), "dx,dy", required=True)
_DRAG = ir.Drag((_CENTRE, _THERE))


def _click_row(call: str, about: str, button: ir.Button, count: int) -> CallSpec:
    return CallSpec(call, ir.Click(None, button, count), about, at_pointer=True, button=button, count=count)


_ROWS = (
    CallSpec("computer.mouse.move_abs", ir.Move(_CENTRE), "", *_POINT),
    _click_row("computer.mouse.single_click", "click where the pointer is", "left", 1),
    _click_row("computer.mouse.double_click", "double click where the pointer is", "left", 2),
    _click_row("computer.mouse.right_click", "right click where the pointer is", "right", 1),
    CallSpec(
        "computer.mouse.scroll",
        ir.Scroll,
        '"up" or "down"',
        _DIRECTION,
        write=write_one_way,
        offer='computer.mouse.scroll(dir="down")',
        loss=amount_lost(NOTCHES),
        at_pointer=True,
    ),
    CallSpec("computer.mouse.drag", _DRAG, "from where the pointer is", *_POINT, read=drag_to, write=write_drag),
    CallSpec("computer.keyboard.write", ir.Type("hello"), "", _TEXT),
    CallSpec("computer.keyboard.press", ir.Key(("ctrl", "c")), "a key, or keys pressed together", _CHORD),
    CallSpec("computer.clipboard.paste", ir.Key, only_read=True, keys=("ctrl", "v")),
    CallSpec("time.sleep", ir.Wait, "", _SECONDS),
    CallSpec("WAIT", ir.Wait, only_read=True, seconds=WAIT_SECONDS),
    CallSpec("FAIL", ir.Fail, write=write_word, loss="the reason is left out"),
    CallSpec("DONE", ir.Done, write=write_word),
    CallSpec("computer.mouse.move_id", refusal=_NO_IDS),
    CallSpec("computer.clipboard.copy_text", refusal=_NO_CLIPBOARD),
    CallSpec("computer.clipboard.copy_image", refusal=_NO_CLIPBOARD),
    CallSpec("computer.clipboard.view_clipboard", refusal=_NO_CLIPBOARD),
    CallSpec("computer.os.open_program", refusal=_NO_PROGRAMS),
    CallSpec("computer.os.maximize_window", refusal=_NO_PROGRAMS),
    CallSpec("computer.window_manager.switch_to_application", refusal=_NO_PROGRAMS),
)
_GRAMMAR = CallGrammar(modules=frozenset({"time"}))
_ENDS = ("DONE", "FAIL")
_DECISIONS = (*_ENDS, "WAIT", "COMMAND")
_CODE_AT_LINE = re.compile(r"^[ \t]*(?:computer\.|time\.sleep\(|import[ \t]+time\b)", re.MULTILINE)
_ACTION_AT_LINE = re.compile(rf"{_CODE_AT_LINE.pattern}|^[ \t]*(?:{'|'.join(_DECISIONS)})[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")


def _find(text: str) -> list[ParsedCall]:
    """The decision when it is not COMMAND, or the calls of the Python blocks. Raises `ParseError`."""
    start = code_blocks.end_of_reasoning(text)
    begin, end = code_blocks.trimmed(text, start, len(text))
    if text[begin:end] in _DECISIONS[:-1]:
        return [ParsedCall(text[begin:end], (), (), (begin, end))]
    blocks = code_blocks.code_blocks(text, start)
    if not blocks:
        line = code_blocks.first_line(text, start, _CODE_AT_LINE)
        if line is None:
            raise ParseError((start, len(text)), "no code found; write a decision block and a ```python block")
        return parse_calls(text, line, len(text), _GRAMMAR)
    code_blocks.check_outside(text, start, blocks, _ACTION_AT_LINE)
    decisions: list[ParsedCall] = []
    calls: list[ParsedCall] = []
    for block in blocks:
        if block.info == "decision":
            word = _COMMENT.sub("", text[block.start : block.end]).strip()
            if word not in _DECISIONS or decisions:
                raise ParseError((block.opening, block.end), f"a reply has one decision of {', '.join(_DECISIONS)}")
            decisions.append(ParsedCall(word, (), (), (block.opening, block.end)))
        elif block.info in ("", "python"):
            calls += parse_calls(text, block.start, block.end, _GRAMMAR)
        elif block.info != "memory":
            raise ParseError(
                (block.opening, block.end), f"a block of {block.info} is not read; write a ```python block"
            )
    if not decisions or decisions[0].name == "COMMAND":
        return calls
    if calls:
        raise ParseError(calls[0].span, f"the decision {decisions[0].name} goes with no actions; decide COMMAND to act")
    return decisions


def _lay_out(lines: list[str], ops: list[Op]) -> str:
    if lines[-1] in _ENDS:
        if len(lines) > 1:
            raise AgentError("waa_navi: a task ends in a reply of its own, without actions")
        return f"```decision\n{lines[0]}\n```"
    head = ["import time"] if any(isinstance(op, ir.Wait) for op in ops) else []
    return "\n".join(["```decision", "COMMAND", "```", "```python", *head, *lines, "```"])


def _introduction(view: ScreenView, space: Space) -> str:
    return (
        "Reply with a decision block that holds COMMAND, WAIT, DONE (the task is finished) or FAIL (it cannot be done), and\n"
        "for COMMAND with a python block of these calls with plain arguments:\n"
        "```decision\nCOMMAND\n```\n```python\ncomputer.mouse.move_abs(x=0.22, y=0.75)\ncomputer.mouse.single_click()\n```\n"
        "x and y are shares of the screen's width and height: (0, 0) is the top left corner, (1, 1) the bottom right one."
    )


DIALECT = CallActionFormat(
    name="waa_navi",
    rows=_ROWS,
    space=lambda view: REL_1,
    find=_find,
    lay_out=_lay_out,
    introduction=_introduction,
    notes={
        ir.Click: "left one or two times, right one time; a point is a move before it; no keys held",
        ir.Drag: "two points, left button, no keys held",
    },
)
