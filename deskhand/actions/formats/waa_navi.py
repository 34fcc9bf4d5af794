"""Windows Agent Arena's Navi: a decision block and a block of Python calls on `computer`, parsed but never run.

Calls beyond pointer and keyboard (element ids, clipboard contents, programs and windows by name) are rejected with a
reason. Clicks have no coordinates: a move and the click right after it are one op.

Sources: WAA `client/mm_agents/navi/gpt/planner_messages.py`, `navi/agent.py` and `vm/setup/server/computer.py`.
"""

from __future__ import annotations

import re

from deskhand.actions import ops as ir
from deskhand.actions.formats import reply_sections
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
"""Duration of WAIT: the pause of WAA's runner between steps."""
NOTCHES = 3
"""WAA scrolls by 400 on Windows, where one notch is 120."""
_POINT = point_parameters(required=True)
_CENTER, _THERE = Point(0.22, 0.75, REL_1), Point(0.35, 0.48, REL_1)
_NO_IDS = "this screen has no element ids; use computer.mouse.move_abs"
_NO_CLIPBOARD = "what the clipboard holds is not the agent's to set; select and copy on the screen"
_NO_PROGRAMS = "programs and windows are opened on the screen, by the pointer and the keys"


_TEXT = Parameter("text", DOUBLE_QUOTED, "text", required=True, named=False)
_CHORD = Parameter("key", keys_joined("+-", '"'), "keys", required=True, named=False)
_SECONDS = Parameter("seconds", NUMBER, "seconds", required=True, named=False)
_DIRECTION = Parameter("dir", direction(("up", "down"), NOTCHES, '"'), "dx,dy", required=True)
_DRAG = ir.Drag((_CENTER, _THERE))


def _click_call(call: str, about: str, button: ir.Button, count: int) -> CallSpec:
    return CallSpec(call, ir.Click(None, button, count), about, at_pointer=True, button=button, count=count)


_CALLS = (
    CallSpec("computer.mouse.move_abs", ir.Move(_CENTER), "", *_POINT),
    _click_call("computer.mouse.single_click", "click where the pointer is", "left", 1),
    _click_call("computer.mouse.double_click", "double click where the pointer is", "left", 2),
    _click_call("computer.mouse.right_click", "right click where the pointer is", "right", 1),
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
    CallSpec("computer.clipboard.paste", ir.Key, parse_only=True, keys=("ctrl", "v")),
    CallSpec("time.sleep", ir.Wait, "", _SECONDS),
    CallSpec("WAIT", ir.Wait, parse_only=True, seconds=WAIT_SECONDS),
    CallSpec("FAIL", ir.Fail, write=write_word, loss="the reason is left out"),
    CallSpec("DONE", ir.Done, write=write_word),
    CallSpec("computer.mouse.move_id", unsupported_reason=_NO_IDS),
    CallSpec("computer.clipboard.copy_text", unsupported_reason=_NO_CLIPBOARD),
    CallSpec("computer.clipboard.copy_image", unsupported_reason=_NO_CLIPBOARD),
    CallSpec("computer.clipboard.view_clipboard", unsupported_reason=_NO_CLIPBOARD),
    CallSpec("computer.os.open_program", unsupported_reason=_NO_PROGRAMS),
    CallSpec("computer.os.maximize_window", unsupported_reason=_NO_PROGRAMS),
    CallSpec("computer.window_manager.switch_to_application", unsupported_reason=_NO_PROGRAMS),
)
_GRAMMAR = CallGrammar(modules=frozenset({"time"}))
_ENDS = ("DONE", "FAIL")
_DECISIONS = (*_ENDS, "WAIT", "COMMAND")
_CODE_AT_LINE = re.compile(r"^[ \t]*(?:computer\.|time\.sleep\(|import[ \t]+time\b)", re.MULTILINE)
_ACTION_AT_LINE = re.compile(rf"{_CODE_AT_LINE.pattern}|^[ \t]*(?:{'|'.join(_DECISIONS)})[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")


def _find(text: str) -> list[ParsedCall]:
    """Return the decision if it is not COMMAND, else the calls of the Python blocks. Raises `ParseError`."""
    start = reply_sections.end_of_reasoning(text)
    begin, end = reply_sections.trimmed(text, start, len(text))
    if text[begin:end] in _DECISIONS[:-1]:
        return [ParsedCall(text[begin:end], (), (), (begin, end))]
    blocks = reply_sections.code_blocks(text, start)
    if not blocks:
        line = reply_sections.first_line(text, start, _CODE_AT_LINE)
        if line is None:
            raise ParseError((start, len(text)), "no code found; write a decision block and a ```python block")
        return parse_calls(text, line, len(text), _GRAMMAR)
    reply_sections.check_outside(text, start, blocks, _ACTION_AT_LINE)
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


def _layout(lines: list[str], ops: list[Op]) -> str:
    if lines[-1] in _ENDS:
        if len(lines) > 1:
            raise AgentError("waa_navi: a task ends in a reply of its own, without actions")
        return f"```decision\n{lines[0]}\n```"
    head = ["import time"] if any(isinstance(op, ir.Wait) for op in ops) else []
    return "\n".join(["```decision", "COMMAND", "```", "```python", *head, *lines, "```"])


def _introduction(view: ScreenView, space: Space) -> str:
    return (
        "Reply with a decision block that holds COMMAND, WAIT, DONE (the task is finished) or FAIL "
        "(it cannot be done), and\n"
        "for COMMAND with a python block of these calls with plain arguments:\n"
        "```decision\nCOMMAND\n```\n```python\ncomputer.mouse.move_abs(x=0.22, "
        "y=0.75)\ncomputer.mouse.single_click()\n```\n"
        "x and y are shares of the screen's width and height: (0, 0) is the top left corner, (1, 1) "
        "the bottom right one."
    )


FORMAT = CallActionFormat(
    name="waa_navi",
    specs=_CALLS,
    space=lambda view: REL_1,
    find=_find,
    layout=_layout,
    introduction=_introduction,
    notes={
        ir.Click: "left one or two times, right one time; a point is a move before it; no keys held",
        ir.Drag: "two points, left button, no keys held",
    },
)
