"""OSWorld's PyAutoGUI format: Python lines that are parsed but never run, or one of the words WAIT, FAIL and DONE.

Lines have PyAutoGUI's semantics, in screen pixels. A drag is `moveTo` followed by `dragTo`; a lone `dragTo` starts at
the pointer. Keys held around one click, drag or scroll are written as `with pyautogui.hold(...)`, so `keyDown`,
`click`, `keyUp` stay three ops.

Sources: OSWorld `mm_agents/prompts.py` and `mm_agents/agent.py`; signatures of PyAutoGUI 0.9.54.
"""

from __future__ import annotations

import re
from dataclasses import replace

from deskhand.actions import ops as ir
from deskhand.actions.formats import reply_sections
from deskhand.actions.formats.arg_types import (
    DURATION_VALUE,
    INTEGER,
    INTEGER_UP,
    NUMBER,
    Parameter,
    choice,
    point_parameters,
)
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat, CallSpec
from deskhand.actions.formats.call_parser import CallGrammar, ParsedCall, parse_calls
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
from deskhand.actions.ops import REL_1, Op, Point, Space
from deskhand.errors import ParseError

WAIT_SECONDS = 2.0
"""Duration of WAIT: the pause of OSWorld's `step`."""
_LANGUAGES = ("", "python", "py", "code")
_WORDS = ("WAIT", "FAIL", "DONE")

X, Y = point_parameters()
X_NEEDED, Y_NEEDED = point_parameters(required=True)
DURATION, INTERVAL = Parameter("duration", DURATION_VALUE), Parameter("interval", DURATION_VALUE)
PAUSES = (Parameter("pause", DURATION_VALUE), Parameter("_pause", DURATION_VALUE))
_CURVES = ("Quad", "Cubic", "Quart", "Quint", "Sine", "Expo", "Circ", "Elastic", "Back", "Bounce")
TWEENS = frozenset(
    ("pyautogui.linear", *(f"pyautogui.ease{way}{curve}" for way in ("In", "Out", "InOut") for curve in _CURVES))
)
"""Easing functions of pointer movements; accepted and ignored."""
_TWEEN = Parameter("tween", choice({name: name for name in sorted(TWEENS)}))
_BUTTON = Parameter("button", BUTTON, "button")
_COUNT = Parameter("clicks", INTEGER, "count")
_UP = Parameter("clicks", INTEGER_UP, "dy", required=True, named=False)
_RIGHT = Parameter("clicks", INTEGER, "dx", required=True, named=False)
_OFFSETS = (Parameter("xOffset", NUMBER, "dx", required=True), Parameter("yOffset", NUMBER, "dy", required=True))
_DRAG = (DURATION, _BUTTON, Parameter("mouseDownUp", TRUTH, "down_up"), _TWEEN, *PAUSES)
_KEY = Parameter("key", KEY, "key", required=True, named=False)
_CENTER = Point(0.5, 0.4, REL_1)
_THERE = Point(0.7, 0.6, REL_1)

_PACES = (DURATION, _TWEEN, *PAUSES)
_AT = (X, Y, INTERVAL, DURATION, *PAUSES)
_AT_BUTTON = (X, Y, INTERVAL, _BUTTON, DURATION, *PAUSES)
_CLICK = (X, Y, _COUNT, INTERVAL, _BUTTON, DURATION, *PAUSES)
_TO = (X_NEEDED, Y_NEEDED)
_ABOUT_CLICK = "without x and y where the pointer is; also button='right', clicks=2"
_ABOUT_DRAG = "from the first place to the second"
_ABOUT_SCROLL = "notches of the wheel; positive is up, negative down"
_HELD_CLICK = ir.Click(_CENTER, modifiers=("ctrl",))
_HELD_KEYS = (Parameter("keys", KEYS, "keys", required=True), *PAUSES)
_SECONDS = Parameter("seconds", NUMBER, "seconds", required=True)

POINTER_CALLS = (
    CallSpec("pyautogui.click", ir.Click(_CENTER), _ABOUT_CLICK, *_CLICK, write=write_click),
    CallSpec("pyautogui.rightClick", ir.Click(_CENTER, "right"), "", *_AT, button="right"),
    CallSpec("pyautogui.middleClick", ir.Click(_CENTER, "middle"), "", *_AT, button="middle"),
    CallSpec("pyautogui.doubleClick", ir.Click(_CENTER, count=2), "", *_AT_BUTTON, count=2),
    CallSpec("pyautogui.tripleClick", ir.Click(_CENTER, count=3), "", *_AT_BUTTON, count=3),
    CallSpec("pyautogui.leftClick", ir.Click, "", *_AT, parse_only=True),
    CallSpec("pyautogui.moveTo", ir.Move(_CENTER), "", *_TO, *_PACES),
    CallSpec("pyautogui.dragTo", ir.Drag((_CENTER, _THERE)), _ABOUT_DRAG, *_TO, *_DRAG, read=drag_to, write=write_drag),
    CallSpec("pyautogui.dragTo", ir.Drag, "", *_TO, *_DRAG, write=write_path),
    CallSpec("pyautogui.moveRel", None, "", *_OFFSETS, *_PACES, read=move_by, parse_only=True),
    CallSpec("pyautogui.move", None, "", *_OFFSETS, *_PACES, read=move_by, parse_only=True),
    CallSpec("pyautogui.dragRel", None, "", *_OFFSETS, *_DRAG, read=drag_by, parse_only=True),
    CallSpec("pyautogui.drag", None, "", *_OFFSETS, *_DRAG, read=drag_by, parse_only=True),
    CallSpec("pyautogui.mouseDown", ir.MouseDown(), "", X, Y, _BUTTON, DURATION, *PAUSES),
    CallSpec("pyautogui.mouseUp", ir.MouseUp(), "", X, Y, _BUTTON, DURATION, *PAUSES, read=mouse_up),
    CallSpec("pyautogui.scroll", ir.Scroll(dy=3, point=_CENTER), _ABOUT_SCROLL, _UP, X, Y, *PAUSES),
    CallSpec("pyautogui.vscroll", ir.Scroll, "", _UP, X, Y, *PAUSES, parse_only=True),
    CallSpec("pyautogui.hscroll", ir.Scroll(dx=3), "positive is right", _RIGHT, X, Y, *PAUSES),
    CallSpec(
        "pyautogui.hold", _HELD_CLICK, "keys held meanwhile", *_HELD_KEYS, read=hold, write=write_held, in_with=True
    ),
)
"""Mouse calls; coordinates are in the space of the format."""

KEY_CALLS = (
    CallSpec("pyautogui.keyDown", ir.KeyDown("shift"), "", _KEY, *PAUSES),
    CallSpec("pyautogui.keyUp", ir.KeyUp("shift"), "", _KEY, *PAUSES),
    CallSpec("time.sleep", ir.Wait(0.5), "seconds", replace(_SECONDS, named=False)),
    CallSpec("pyautogui.sleep", ir.Wait, "", _SECONDS, parse_only=True),
)


def typing_calls(*, named: bool, keys: Parameter) -> tuple[CallSpec, ...]:
    """Typing and key presses, with arguments written by name or position (`named`) and `keys` as given."""
    message = Parameter("message", MESSAGE, "text", required=True, named=named)
    one = Parameter("keys", keys.kind, "keys", required=True, named=keys.named)
    presses = (Parameter("presses", PRESSES, "presses"), INTERVAL, *PAUSES)
    return (
        CallSpec("pyautogui.write", ir.Type("hello"), "", message, INTERVAL, *PAUSES, read=type_or_press),
        CallSpec("pyautogui.typewrite", ir.Type, "", message, INTERVAL, *PAUSES, read=type_or_press, parse_only=True),
        CallSpec("pyautogui.press", ir.Key(("enter",)), "", one, *presses, read=press, write=write_press),
        CallSpec("pyautogui.hotkey", ir.Key(("ctrl", "c")), "keys pressed together", keys, INTERVAL, *PAUSES),
    )


NOTES: dict[type[Op], str] = {
    **dict.fromkeys((ir.Click, ir.MouseDown, ir.MouseUp, ir.Drag), "left, middle and right button"),
    ir.Scroll: "one axis at a time",
    **dict.fromkeys((ir.Key, ir.KeyDown, ir.KeyUp), "keys that pyautogui has a name for"),
}
GRAMMAR = CallGrammar(
    modules=frozenset({"pyautogui", "time"}),
    words=frozenset(spelled for word in _WORDS for spelled in (word, word.capitalize())),
    settings=frozenset({"pyautogui.PAUSE", "pyautogui.FAILSAFE"}),
    contexts=frozenset({"pyautogui.hold"}),
    loops=True,
    variables=True,
    constants=TWEENS,
)
_CODE_AT_LINE = re.compile(
    r"^[ \t]*+(?P<mark>action[ \t]*+:[ \t]*+)?"
    r"(?=(?:with[ \t]+)?(?:pyautogui\.|computer\.[a-z_]+\()|time\.sleep\(|import[ \t]+(?:pyautogui|time)\b"
    r"|(?:wait|fail|done)[ \t]*$)",
    re.IGNORECASE | re.MULTILINE,
)


def find_code(text: str, start: int, grammar: CallGrammar) -> list[ParsedCall]:
    """Return the calls of the code blocks, or of the lines of code at the end. Raises `ParseError`."""
    blocks = reply_sections.code_blocks(text, start)
    if not blocks:
        begin = reply_sections.first_line(text, start, _CODE_AT_LINE)
        if begin is None:
            raise ParseError((start, len(text)), "no code found; write it in one ```python block")
        return parse_calls(text, begin, len(text), grammar)
    reply_sections.check_outside(text, start, blocks, _CODE_AT_LINE)
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
    """Return the lines in a code block. A block that starts with `with` gets an import, or OSWorld could not run it."""
    head = ["import pyautogui"] if lines[0].startswith("with ") else []
    return "\n".join(["```python", *head, *lines, "```"])


def _layout(lines: list[str], ops: list[Op]) -> str:
    return f"```{lines[0]}```" if len(lines) == 1 and lines[0] in _WORDS else block_of(lines)


def _introduction(view: ScreenView, space: Space) -> str:
    return (
        "Reply with Python code in one ```python block. It is read, not run: only these calls with "
        "plain arguments, one a line.\n"
        f"x and y are pixels of the screen, which is {space.width:g}x{space.height:g}; (0, 0) is the top left corner."
    )


_ABOUT_WAIT = f"instead of code: wait {WAIT_SECONDS:g} seconds"
_ABOUT_FAIL, _NO_REASON = "instead of code: the task cannot be done", "the reason is left out"
_ABOUT_DONE = "instead of code, or in its last line: the task is finished"
_WORD_CALLS = (
    CallSpec("WAIT", ir.Wait, _ABOUT_WAIT, parse_only=True, offer="WAIT", seconds=WAIT_SECONDS),
    CallSpec("FAIL", ir.Fail, _ABOUT_FAIL, write=write_word, offer="FAIL", loss=_NO_REASON),
    CallSpec("DONE", ir.Done, _ABOUT_DONE, write=write_word, offer="DONE"),
    CallSpec("Wait", ir.Wait, parse_only=True, seconds=WAIT_SECONDS),
    CallSpec("Fail", ir.Fail, parse_only=True),
    CallSpec("Done", ir.Done, parse_only=True),
)
KEYS_IN_TURN = Parameter("keys", KEYS, "keys", required=True, named=False, variadic=True)
"""Keys as positional arguments of `hotkey`."""

FORMAT = CallActionFormat(
    name="pyautogui",
    specs=(*POINTER_CALLS, *typing_calls(named=False, keys=KEYS_IN_TURN), *KEY_CALLS, *_WORD_CALLS),
    space=lambda view: view.screen,
    find=lambda text: find_code(text, reply_sections.end_of_reasoning(text), GRAMMAR),
    layout=_layout,
    introduction=_introduction,
    closing="When the task is finished reply ```DONE```.",
    notes=NOTES,
)
