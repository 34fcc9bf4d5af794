"""Limits of one reply, enforced by both `parse` and `emit` of every format.

They bound the time that a reply can occupy a desktop and ensure that whatever is emitted can be parsed.
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
"""Characters of a reply, including reasoning."""
MAX_NESTING = 32
"""Depth of nested lists and objects."""
MAX_OPS = 64
MAX_TEXT = 20_000
"""Characters of one text argument."""
MAX_WAIT_S = 30.0
MAX_TOTAL_WAIT_S = 60.0
"""Sum of all waits in one reply."""
MAX_SCROLL_NOTCHES = 100
MAX_CLICKS = 5
MAX_PATH = 64
MAX_PERFORMED_PATH = 1000
"""Points of a drag that a desktop executes for any client."""
MAX_KEYS = 6
MAX_ZOOMS = 4
"""Zooms of one reply; each adds an image to the next prompt."""
MAX_NUMBER = 1_000_000
"""Largest absolute value of a number; keeps arithmetic on model output exact and cheap."""


def check_length(text: str) -> None:
    """Raise `ParseError` if a reply is too long."""
    if len(text) > MAX_REPLY:
        raise ParseError((MAX_REPLY, len(text)), f"a reply of {len(text)} characters; the most is {MAX_REPLY}")


def check_number(name: str, value: object) -> int | float:
    """Return `value` as a number. Raises `AgentError` if it is not a number or is out of range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise AgentError(f"{name} must be a number, not {truncate_repr(value)}")
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise AgentError(f"{name} is out of all bounds; the most is {MAX_NUMBER}")
    return value


def check_text(name: str, value: object, max_chars: int = MAX_TEXT) -> str:
    """Return `value` as Unicode text. Raises `AgentError` if it is not text or is too long."""
    if not isinstance(value, str):
        raise AgentError(f"{name} must be a text, not {truncate_repr(value)}")
    if len(value) > max_chars:
        raise AgentError(f"{name} has {len(value)} characters; the most is {max_chars}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise AgentError(f"{name} is not Unicode text: it holds half of a surrogate pair")
    return value


def check_key(name: object) -> str:
    """Return the canonical name of a key. Raises `AgentError` if the key is unknown."""
    if not isinstance(name, str):
        raise AgentError(f"a key must be a name, not {truncate_repr(name)}")
    return canonical(name)


def check_point(point: Point) -> None:
    """Raise `AgentError` unless `point` lies in its own space."""
    check_number("x", point.x)
    check_number("y", point.y)
    to_screen_px(point, max(1, int(point.space.width)), max(1, int(point.space.height)))


def check_op(op: Op) -> None:
    """Raise `AgentError` if `op` exceeds a limit or a point lies outside its own space."""
    for point in points_of(op):
        check_point(point)
    check_amounts(op)


def check_amounts(op: Op, max_path: int = MAX_PATH) -> None:
    """Raise `AgentError` if `op` exceeds a limit; points are not checked."""
    keys: tuple[str, ...] = ()
    match op:
        case Click():
            _check_range("clicks", op.count, 1, MAX_CLICKS)
        case Drag():
            _check_range("the points of a drag", len(op.path), 2, max_path)
        case Scroll():
            notches = max(abs(op.dx), abs(op.dy))
            if notches > MAX_SCROLL_NOTCHES:
                raise AgentError(
                    f"the wheel turned by {truncate_repr(notches)} notches at once; the most is {MAX_SCROLL_NOTCHES}"
                )
        case Type() | Answer():
            check_text("text", op.text)
        case Fail():
            check_text("reason", op.reason)
        case Key(keys=keys):
            _check_range("the keys of a chord", len(keys), 1, MAX_KEYS)
        case KeyDown(key=key) | KeyUp(key=key):
            keys = (key,)
        case Wait():
            _check_range("seconds of waiting", check_number("seconds", op.seconds), 0, MAX_WAIT_S)
    if isinstance(op, (Click, Drag, Scroll)):
        keys = op.modifiers
        _check_range("modifiers", len(keys), 0, MAX_KEYS)
    for key in keys:
        check_key(key)


def check_ops(ops: Sequence[Op]) -> tuple[int, str] | None:
    """Return the index of the first op that exceeds a limit of the whole reply, and the reason; None if all are
    valid."""
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
    """Return all points of an op, in order."""
    found = (getattr(op, name, None) for name in ("point", "top_left", "bottom_right"))
    return (*(point for point in found if point is not None), *getattr(op, "path", ()))


def _check_range(name: str, value: float, minimum: float, maximum: float) -> None:
    if not minimum <= value <= maximum:
        raise AgentError(f"{name}: {truncate_repr(value)} is outside {minimum:g}..{maximum:g}")


def truncate_repr(value: object) -> str:
    """Return a short ASCII representation of a value for an error message."""
    if isinstance(value, int) and abs(value) > 10**18:
        return "a huge number"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    written = ascii(value[:40] if isinstance(value, str) else value)
    return written if len(written) <= 60 else written[:60] + "..."
