"""OSWorld's pyautogui: lines of Python that are read and never run, or one of the words WAIT, FAIL and DONE.

Invariant: a line means what pyautogui does with it, in pixels of the screen. A drag is `moveTo` and `dragTo` one after the other;
a `dragTo` by itself starts where the pointer is: button down, button up there. Keys held around one click, drag or scroll are
written as `with pyautogui.hold(...)`, so that `keyDown`, `click`, `keyUp` stay three ops.

Shapes: OSWorld `mm_agents/prompts.py` and `mm_agents/agent.py`, and the signatures of PyAutoGUI 0.9.54.
"""

from __future__ import annotations

import re

from deskhand.actions import ops as ir
from deskhand.actions.formats import code_blocks
from deskhand.actions.formats.arg_types import NUMBER, PACE, WHOLE, WHOLE_UP, choice
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat
from deskhand.actions.formats.call_parser import CallGrammar, ParsedCall, parse_calls
from deskhand.actions.formats.call_table import CallSpec, CallTable, Parameter, point_parameters
from deskhand.actions.formats.pyautogui_gestures import (
    BUTTON,
    KEY,
    KEYS,
    MESSAGE,
    PRESSES,
    TRUTH,
    drag_by,
    drag_to,
    hold,
    mouse_up,
    move_by,
    press,
    type_or_press,
    write_click,
    write_drag,
    write_held,
    write_path,
    write_press,
    write_word,
)
from deskhand.actions.formats.think_tags import end_of_reasoning
from deskhand.actions.ops import REL_1, Op, Point, Space
from deskhand.errors import ParseError

WAIT_SECONDS = 2.0
"""What OSWorld sleeps for the word WAIT: the pause of its `step`."""
_LANGUAGES = ("", "python", "py", "code")
_WORDS = ("WAIT", "FAIL", "DONE")

X, Y = point_parameters()
X_NEEDED, Y_NEEDED = point_parameters(required=True)
DURATION, INTERVAL = Parameter("duration", PACE), Parameter("interval", PACE)
PAUSES = (Parameter("pause", PACE), Parameter("_pause", PACE))
TWEENS = frozenset(
    f"pyautogui.{name}"
    for name in (
        "linear",
        *(
            f"ease{way}{curve}"
            for way in ("In", "Out", "InOut")
            for curve in ("Quad", "Cubic", "Quart", "Quint", "Sine", "Expo", "Circ", "Elastic", "Back", "Bounce")
        ),
    )
)
"""How the pointer gathers speed on its way, which changes nothing of where it ends."""
_TWEEN = Parameter("tween", choice({name: name for name in sorted(TWEENS)}))
_BUTTON = Parameter("button", BUTTON, "button")
_COUNT = Parameter("clicks", WHOLE, "count")
_UP = Parameter("clicks", WHOLE_UP, "dy", required=True, named=False)
_RIGHT = Parameter("clicks", WHOLE, "dx", required=True, named=False)
_OFFSETS = (Parameter("xOffset", NUMBER, "dx", required=True), Parameter("yOffset", NUMBER, "dy", required=True))
_DRAG = (DURATION, _BUTTON, Parameter("mouseDownUp", TRUTH, "down_up"), _TWEEN, *PAUSES)
_KEY = Parameter("key", KEY, "key", required=True, named=False)
_CENTRE = Point(0.5, 0.4, REL_1)
_THERE = Point(0.7, 0.6, REL_1)

POINTER_ROWS = (
    CallSpec(
        "pyautogui.click",
        (X, Y, _COUNT, INTERVAL, _BUTTON, DURATION, *PAUSES),
        ir.Click,
        write=write_click,
        example=ir.Click(_CENTRE),
        about="without x and y where the pointer is; also button='right', clicks=2",
    ),
    CallSpec(
        "pyautogui.rightClick",
        (X, Y, INTERVAL, DURATION, *PAUSES),
        ir.Click,
        {"button": "right"},
        example=ir.Click(_CENTRE, "right"),
    ),
    CallSpec(
        "pyautogui.middleClick",
        (X, Y, INTERVAL, DURATION, *PAUSES),
        ir.Click,
        {"button": "middle"},
        example=ir.Click(_CENTRE, "middle"),
    ),
    CallSpec(
        "pyautogui.doubleClick",
        (X, Y, INTERVAL, _BUTTON, DURATION, *PAUSES),
        ir.Click,
        {"count": 2},
        example=ir.Click(_CENTRE, count=2),
    ),
    CallSpec(
        "pyautogui.tripleClick",
        (X, Y, INTERVAL, _BUTTON, DURATION, *PAUSES),
        ir.Click,
        {"count": 3},
        example=ir.Click(_CENTRE, count=3),
    ),
    CallSpec("pyautogui.leftClick", (X, Y, INTERVAL, DURATION, *PAUSES), ir.Click, only_read=True),
    CallSpec("pyautogui.moveTo", (X_NEEDED, Y_NEEDED, DURATION, _TWEEN, *PAUSES), ir.Move, example=ir.Move(_CENTRE)),
    CallSpec(
        "pyautogui.dragTo",
        (X_NEEDED, Y_NEEDED, *_DRAG),
        ir.Drag,
        read=drag_to,
        write=write_drag,
        example=ir.Drag((_CENTRE, _THERE)),
        about="from the first place to the second",
    ),
    CallSpec("pyautogui.dragTo", (X_NEEDED, Y_NEEDED, *_DRAG), ir.Drag, write=write_path),
    CallSpec("pyautogui.moveRel", (*_OFFSETS, DURATION, _TWEEN, *PAUSES), read=move_by, only_read=True),
    CallSpec("pyautogui.move", (*_OFFSETS, DURATION, _TWEEN, *PAUSES), read=move_by, only_read=True),
    CallSpec("pyautogui.dragRel", (*_OFFSETS, *_DRAG), read=drag_by, only_read=True),
    CallSpec("pyautogui.drag", (*_OFFSETS, *_DRAG), read=drag_by, only_read=True),
    CallSpec("pyautogui.mouseDown", (X, Y, _BUTTON, DURATION, *PAUSES), ir.MouseDown, example=ir.MouseDown()),
    CallSpec("pyautogui.mouseUp", (X, Y, _BUTTON, DURATION, *PAUSES), ir.MouseUp, read=mouse_up, example=ir.MouseUp()),
    CallSpec(
        "pyautogui.scroll",
        (_UP, X, Y, *PAUSES),
        ir.Scroll,
        example=ir.Scroll(dy=3, point=_CENTRE),
        about="notches of the wheel; positive is up, negative down",
    ),
    CallSpec("pyautogui.vscroll", (_UP, X, Y, *PAUSES), ir.Scroll, only_read=True),
    CallSpec(
        "pyautogui.hscroll", (_RIGHT, X, Y, *PAUSES), ir.Scroll, example=ir.Scroll(dx=3), about="positive is right"
    ),
    CallSpec(
        "pyautogui.hold",
        (Parameter("keys", KEYS, "keys", required=True), *PAUSES),
        read=hold,
        write=write_held,
        example=ir.Click(_CENTRE, modifiers=("ctrl",)),
        about="keys held meanwhile",
        behind_with=True,
    ),
)
"""The mouse; the coordinates are in the space of the dialect."""

KEY_ROWS = (
    CallSpec("pyautogui.keyDown", (_KEY, *PAUSES), ir.KeyDown, example=ir.KeyDown("shift")),
    CallSpec("pyautogui.keyUp", (_KEY, *PAUSES), ir.KeyUp, example=ir.KeyUp("shift")),
    CallSpec(
        "time.sleep",
        (Parameter("seconds", NUMBER, "seconds", required=True, named=False),),
        ir.Wait,
        example=ir.Wait(0.5),
        about="seconds",
    ),
    CallSpec("pyautogui.sleep", (Parameter("seconds", NUMBER, "seconds", required=True),), ir.Wait, only_read=True),
)


def typing_rows(*, named: bool, keys: Parameter) -> tuple[CallSpec, ...]:
    """Texts and key presses; `named` and `keys` say in which of pyautogui's ways they are written."""
    message = Parameter("message", MESSAGE, "text", required=True, named=named)
    one = Parameter("keys", keys.kind, "keys", required=True, named=keys.named)
    presses = (Parameter("presses", PRESSES, "presses"), INTERVAL, *PAUSES)
    return (
        CallSpec(
            "pyautogui.write", (message, INTERVAL, *PAUSES), ir.Type, read=type_or_press, example=ir.Type("hello")
        ),
        CallSpec("pyautogui.typewrite", (message, INTERVAL, *PAUSES), ir.Type, read=type_or_press, only_read=True),
        CallSpec("pyautogui.press", (one, *presses), ir.Key, read=press, write=write_press, example=ir.Key(("enter",))),
        CallSpec(
            "pyautogui.hotkey",
            (keys, INTERVAL, *PAUSES),
            ir.Key,
            example=ir.Key(("ctrl", "c")),
            about="keys pressed together",
        ),
    )


NOTES: dict[type[Op], str] = {
    ir.Click: "left, middle and right button",
    ir.MouseDown: "left, middle and right button",
    ir.MouseUp: "left, middle and right button",
    ir.Drag: "left, middle and right button",
    ir.Scroll: "one axis at a time",
    ir.Key: "keys that pyautogui has a name for",
    ir.KeyDown: "keys that pyautogui has a name for",
    ir.KeyUp: "keys that pyautogui has a name for",
}
GRAMMAR = CallGrammar(
    modules=frozenset({"pyautogui", "time"}),
    words=frozenset(spelled for word in _WORDS for spelled in (word, word.capitalize())),
    settings=frozenset({"pyautogui.PAUSE", "pyautogui.FAILSAFE"}),
    contexts=frozenset({"pyautogui.hold"}),
    loops=True,
    constants=TWEENS,
)
_CODE_AT_LINE = re.compile(
    r"^[ \t]*+(?P<mark>action[ \t]*+:[ \t]*+)?"
    r"(?=(?:with[ \t]+)?(?:pyautogui\.|computer\.[a-z_]+\()|time\.sleep\(|import[ \t]+(?:pyautogui|time)\b"
    r"|(?:wait|fail|done)[ \t]*$)",
    re.IGNORECASE | re.MULTILINE,
)


def find_code(text: str, start: int, grammar: CallGrammar) -> list[ParsedCall]:
    """The calls of a reply's code blocks, one after the other, or of the lines of code at its end. Raises `ParseError`."""
    blocks = code_blocks.code_blocks(text, start)
    if not blocks:
        begin = code_blocks.first_line(text, start, _CODE_AT_LINE)
        if begin is None:
            raise ParseError((start, len(text)), "no code found; write it in one ```python block")
        return parse_calls(text, begin, len(text), grammar)
    code_blocks.check_outside(text, start, blocks, _CODE_AT_LINE)
    calls: list[ParsedCall] = []
    for block in blocks:
        if block.info in {word.lower() for word in grammar.words} and not text[block.start : block.end].strip():
            calls.append(ParsedCall(block.info.upper(), (), (), (block.opening, block.end)))
        elif block.info in _LANGUAGES:
            calls += parse_calls(text, block.start, block.end, grammar)
        else:
            raise ParseError(
                (block.opening, block.end), f"a block of {block.info} is not read; write a ```python block"
            )
    return calls


def block_of(lines: list[str]) -> str:
    """The lines in a code block; an import comes first where a block would begin with `with`, which OSWorld could not run."""
    head = ["import pyautogui"] if lines[0].startswith("with ") else []
    return "\n".join(["```python", *head, *lines, "```"])


def _lay_out(lines: list[str], ops: list[Op]) -> str:
    return f"```{lines[0]}```" if len(lines) == 1 and lines[0] in _WORDS else block_of(lines)


def _introduction(view: ScreenView, space: Space) -> str:
    return (
        "Reply with Python code in one ```python block. It is read, not run: only these calls with plain arguments, one a line.\n"
        f"x and y are pixels of the screen, which is {space.width:g}x{space.height:g}; (0, 0) is the top left corner."
    )


_WORD_ROWS = (
    CallSpec(
        "WAIT",
        (),
        ir.Wait,
        {"seconds": WAIT_SECONDS},
        only_read=True,
        offer="WAIT",
        about=f"instead of code: wait {WAIT_SECONDS:g} seconds",
    ),
    CallSpec(
        "FAIL",
        (),
        ir.Fail,
        write=write_word,
        offer="FAIL",
        about="instead of code: the task cannot be done",
        loss="the reason is left out",
    ),
    CallSpec(
        "DONE",
        (),
        ir.Done,
        write=write_word,
        offer="DONE",
        about="instead of code, or in its last line: the task is finished",
    ),
    CallSpec("Wait", (), ir.Wait, {"seconds": WAIT_SECONDS}, only_read=True),
    CallSpec("Fail", (), ir.Fail, only_read=True),
    CallSpec("Done", (), ir.Done, only_read=True),
)

DIALECT = CallActionFormat(
    name="pyautogui",
    table=CallTable(
        (
            *POINTER_ROWS,
            *typing_rows(named=False, keys=Parameter("keys", KEYS, "keys", True, named=False, many=True)),
            *KEY_ROWS,
            *_WORD_ROWS,
        )
    ),
    space=lambda view: view.screen,
    find=lambda text: find_code(text, end_of_reasoning(text), GRAMMAR),
    lay_out=_lay_out,
    introduction=_introduction,
    closing="When the task is finished reply ```DONE```.",
    notes=NOTES,
)
