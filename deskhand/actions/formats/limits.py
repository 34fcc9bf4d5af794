"""How much a reply may ask for. Invariant: `parse` and `emit` of a dialect hold ops to the same limits, so that what is
emitted is parsed, and no reply keeps a desktop busy without end.
"""

from __future__ import annotations

from collections.abc import Sequence

from deskhand.actions.keys import canonical
from deskhand.actions.ops import (
    TERMINAL_OPS,
    Answer,
    Click,
    Drag,
    Fail,
    Key,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Op,
    Point,
    Scroll,
    Type,
    Wait,
    Zoom,
    to_screen_px,
)
from deskhand.errors import AgentError, ParseError

MAX_REPLY = 200_000
"""Characters of a reply, reasoning included."""
MAX_NESTING = 32
"""Lists and objects within one another."""
MAX_OPS = 64
MAX_TEXT = 20_000
"""Characters of one text."""
MAX_WAIT_S = 30.0
MAX_TOTAL_WAIT_S = 60.0
"""All waits of one reply together."""
MAX_SCROLL_NOTCHES = 100
MAX_CLICKS = 5
MAX_PATH = 64
MAX_PERFORMED_PATH = 1000
"""Points of a drag that a desktop performs, whoever asks for it."""
MAX_KEYS = 6
MAX_ZOOMS = 4
"""Rectangles of one reply; each is an image more for the model to look at."""
MAX_NUMBER = 1_000_000
"""No number of a reply is larger; this keeps arithmetic on what a model wrote exact and cheap."""


def check_length(text: str) -> None:
    """Raise `ParseError` when a reply is too long to be looked at."""
    if len(text) > MAX_REPLY:
        raise ParseError((MAX_REPLY, len(text)), f"a reply of {len(text)} characters; the most is {MAX_REPLY}")


def check_number(name: str, value: object) -> int | float:
    """`value` as a number. Raises `AgentError` when it is none, or too large for anything on a screen."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise AgentError(f"{name} must be a number, not {truncate_repr(value)}")
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise AgentError(f"{name} is out of all bounds; the most is {MAX_NUMBER}")
    return value


def check_text(name: str, value: object, most: int = MAX_TEXT) -> str:
    """`value` as Unicode text. Raises `AgentError` when it is none."""
    if not isinstance(value, str):
        raise AgentError(f"{name} must be a text, not {truncate_repr(value)}")
    if len(value) > most:
        raise AgentError(f"{name} has {len(value)} characters; the most is {most}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise AgentError(f"{name} is not Unicode text: it holds half of a surrogate pair")
    return value


def check_key(name: object) -> str:
    """The canonical name of a key. Raises `AgentError` when it names none."""
    if not isinstance(name, str):
        raise AgentError(f"a key must be a name, not {truncate_repr(name)}")
    return canonical(name)


def check_point(point: Point) -> None:
    """Raise `AgentError` unless `point` lies in its own space; it is never moved."""
    check_number("x", point.x)
    check_number("y", point.y)
    to_screen_px(point, max(1, int(point.space.width)), max(1, int(point.space.height)))


def check_op(op: Op) -> None:
    """Raise `AgentError` when `op` is more than a reply may ask for."""
    for point in points_of(op):
        check_point(point)
    match op:
        case Click():
            _check_range("clicks", op.count, 1, MAX_CLICKS)
        case Drag():
            _check_range("the points of a drag", len(op.path), 2, MAX_PATH)
        case Scroll():
            most = max(abs(op.dx), abs(op.dy))
            if most > MAX_SCROLL_NOTCHES:
                raise AgentError(
                    f"the wheel turned by {truncate_repr(most)} notches at once; the most is {MAX_SCROLL_NOTCHES}"
                )
        case Type() | Answer():
            check_text("text", op.text)
        case Fail():
            check_text("reason", op.reason)
        case Key():
            _check_range("the keys of a chord", len(op.keys), 1, MAX_KEYS)
            for key in op.keys:
                check_key(key)
        case KeyDown() | KeyUp():
            check_key(op.key)
        case Wait():
            _check_range("seconds of waiting", check_number("seconds", op.seconds), 0, MAX_WAIT_S)
        case _:
            pass
    if isinstance(op, (Click, Drag, Scroll)):
        _check_range("modifiers", len(op.modifiers), 0, MAX_KEYS)
        for key in op.modifiers:
            check_key(key)


def check_ops(ops: Sequence[Op]) -> tuple[int, str] | None:
    """The first op that goes too far in a reply whose ops are fine one by one, by its index, and why; None when all is well."""
    waited, zooms = 0.0, 0
    for index, op in enumerate(ops):
        waited += op.seconds if isinstance(op, Wait) else 0.0
        zooms += isinstance(op, Zoom)
        if index >= MAX_OPS:
            return index, f"more than {MAX_OPS} actions in one reply"
        if index and isinstance(ops[index - 1], TERMINAL_OPS):
            return index, "nothing may follow the action that ends the task"
        if zooms > MAX_ZOOMS:
            return index, f"more than {MAX_ZOOMS} zooms in one reply"
        if waited > MAX_TOTAL_WAIT_S:
            return index, f"more than {MAX_TOTAL_WAIT_S:g} seconds of waiting in one reply"
    return None


def points_of(op: Op) -> tuple[Point, ...]:
    """All points of an op, in order."""
    match op:
        case Move():
            return (op.point,)
        case Click() | MouseDown() | MouseUp() | Scroll():
            return () if op.point is None else (op.point,)
        case Drag():
            return op.path
        case Zoom():
            return (op.top_left, op.bottom_right)
        case _:
            return ()


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise AgentError(f"{name}: {truncate_repr(value)} is outside {least:g}..{most:g}")


def truncate_repr(value: object) -> str:
    """A value in a few ASCII characters, for an error's line."""
    if isinstance(value, int) and abs(value) > 10**18:
        return "a huge number"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    written = ascii(value[:40] if isinstance(value, str) else value)
    return written if len(written) <= 60 else written[:60] + "..."
