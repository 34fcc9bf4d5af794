"""Generated ops and corrupted replies for every registered format, derived from its `supported_ops`.

Ops have points on the screen, which a format converts to its own space. A round trip therefore checks that the first
parse equals the ops up to one unit of that space, and that a second round trip is exact.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from typing import Any, get_args

from hypothesis import strategies as st

from deskhand.actions.formats.base import ActionFormat, ScreenView
from deskhand.actions.keys import MODIFIERS, NAMES
from deskhand.actions.ops import (
    TERMINAL_OPS,
    Answer,
    Click,
    Done,
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
    Screenshot,
    Scroll,
    Type,
    Wait,
    Zoom,
    to_screen_px,
)
from deskhand.actions.pointer_merge import merge_moves
from deskhand.errors import AgentError, ParseError

VIEWS = (
    ScreenView.of_screen(1000, 1000),
    ScreenView.of_screen(1920, 1080),
    ScreenView(1920, 1080, 1366, 768),
    ScreenView.of_screen(256, 192),
)
KINDS: tuple[type[Any], ...] = get_args(Op)
FRAGMENTS = (
    "hello", "Hello, World!", "f(x)", "42", "a, b", "3 + 4 = 7", "\n", "\t", '"', "'", "\\", "`", "```", "{", "}", "[",
    "]", "(", ")", "{{}}", '{"op":"done"}', "<think>", "</think>", "<tool_call>", "</tool_call>", "<point>", "Action: ",
    "Thought: ", "DONE", "FAIL", "WAIT", "finished()", "pyautogui.click(1, 2)", "rm -rf /", "été", "日本", "🙂", "\\n",
    "#", ";", "[INFEASIBLE]", "  ", "x=1", "')", "')\n", "\"\"\"", "\\'", "\nDONE\n", "wait()",
    "<|box_start|>(1,2)<|box_end|>", "%s", "\r\n", "\u2028", "\x85", "\x7f",
    "\u0301", "## Code:\n", "=SUM(A1:A3)",
)  # fmt: skip
"""Texts that are hard to quote in some format."""

_texts = st.one_of(
    st.sampled_from(FRAGMENTS),
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4).map("".join),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
)
_keys = st.one_of(
    st.sampled_from(NAMES), st.sampled_from([chr(code) for code in range(0x21, 0x7F)]), st.sampled_from("éßñЖ日€")
)
_modifiers = st.one_of(
    st.just(()), st.lists(st.sampled_from(MODIFIERS), min_size=1, max_size=2, unique=True).map(tuple)
)
_buttons: Any = st.sampled_from(["left", "left", "left", "right", "middle", "back", "forward"])
_notches = st.one_of(st.just(0), st.integers(-9, 9), st.integers(-100, 100))


@lru_cache
def _points(view: ScreenView) -> st.SearchStrategy[Point]:
    screen = view.screen
    edges_x, edges_y = st.sampled_from([0, view.screen_width - 1]), st.sampled_from([0, view.screen_height - 1])
    return st.builds(
        Point,
        st.one_of(st.integers(0, view.screen_width - 1), edges_x),
        st.one_of(st.integers(0, view.screen_height - 1), edges_y),
        st.just(screen),
    )


@lru_cache(maxsize=512)
def ops_of(kind: type[Any], view: ScreenView) -> st.SearchStrategy[Any]:
    """Ops of one class, simple ones more often."""
    at = _points(view)
    maybe_at = st.one_of(st.none(), at)
    counts = st.sampled_from([1, 1, 1, 2, 2, 3])
    seconds = st.one_of(st.integers(0, 30), st.sampled_from([0.5, 1.5, 2.0, 5.0]), st.floats(0, 30))
    made: dict[type[Any], st.SearchStrategy[Any]] = {
        Move: st.builds(Move, at),
        Click: st.builds(Click, maybe_at, _buttons, counts, _modifiers),
        MouseDown: st.builds(MouseDown, maybe_at, _buttons),
        MouseUp: st.builds(MouseUp, maybe_at, _buttons),
        Drag: st.builds(
            Drag, st.one_of(st.tuples(at, at), st.lists(at, min_size=3, max_size=5).map(tuple)), _buttons, _modifiers
        ),
        Scroll: st.builds(Scroll, _notches, _notches, maybe_at, _modifiers),
        Type: st.builds(Type, _texts),
        Key: st.builds(Key, st.lists(_keys, min_size=1, max_size=4).map(tuple)),
        KeyDown: st.builds(KeyDown, _keys),
        KeyUp: st.builds(KeyUp, _keys),
        Wait: st.builds(Wait, seconds),
        Screenshot: st.just(Screenshot()),
        Zoom: st.builds(Zoom, at, at),
        Done: st.just(Done()),
        Fail: st.builds(Fail, st.one_of(st.just(""), _texts)),
        Answer: st.builds(Answer, _texts),
    }
    return made[kind]


def supported(action_format: ActionFormat) -> list[type[Any]]:
    """Return the op classes that a format supports, with or without loss."""
    return [kind for kind in KINDS if action_format.supported_ops[kind].kind != "absent"]


def one_op(action_format: ActionFormat, view: ScreenView) -> st.SearchStrategy[Any]:
    """An op of any supported class, with equal weights."""
    return st.one_of(*(ops_of(kind, view) for kind in supported(action_format)))


def batch_of_ops(action_format: ActionFormat, view: ScreenView, count: int) -> st.SearchStrategy[list[Any]]:
    """A list of `count` ops drawn from `one_op`."""
    return st.lists(one_op(action_format, view), min_size=count, max_size=count)


def without_terminal(ops: Sequence[Any]) -> list[Any]:
    """Return `ops` without terminal ops."""
    return [op for op in ops if not isinstance(op, TERMINAL_OPS)]


def some_ops(action_format: ActionFormat, view: ScreenView) -> st.SearchStrategy[list[Any]]:
    """Up to four lossless ops, the last possibly terminal."""
    lossless = [kind for kind in supported(action_format) if action_format.supported_ops[kind].kind == "lossless"]
    without_terminal = st.lists(
        st.one_of(*(ops_of(kind, view) for kind in lossless if kind not in TERMINAL_OPS)), min_size=1, max_size=4
    )
    endpoints = [ops_of(kind, view) for kind in lossless if kind in TERMINAL_OPS]
    ending = st.one_of(st.just([]), *(st.tuples(end).map(list) for end in endpoints))
    return st.tuples(without_terminal, ending).map(lambda pair: pair[0] + pair[1])


def in_any_view(
    make: Callable[[ActionFormat, ScreenView], st.SearchStrategy[Any]], action_format: ActionFormat
) -> st.SearchStrategy[tuple[ScreenView, list[Any]]]:
    """(view, ops) drawn from `one_op` or `some_ops`."""
    made = [st.tuples(st.just(view), make(action_format, view)) for view in VIEWS]
    return st.one_of(*made).map(lambda pair: (pair[0], pair[1] if isinstance(pair[1], list) else [pair[1]]))


def sample_op(kind: type[Any], view: ScreenView) -> Any:
    """Return the simplest op of a class; every format that supports the class can express it."""
    at, to = Point(view.screen_width // 2, view.screen_height // 3, view.screen), Point(9, 9, view.screen)
    made: dict[type[Any], Any] = {
        Move: Move(at), Click: Click(at), MouseDown: MouseDown(at), MouseUp: MouseUp(at), Drag: Drag((at, to)),
        Scroll: Scroll(0, 3, at), Type: Type("hello"), Key: Key(("ctrl", "s")), KeyDown: KeyDown("shift"),
        KeyUp: KeyUp("shift"), Wait: Wait(2), Screenshot: Screenshot(), Zoom: Zoom(to, at), Done: Done(), Fail: Fail(),
        Answer: Answer("42"),
    }  # fmt: skip
    return made[kind]


def round_trip(action_format: ActionFormat, view: ScreenView, ops: list[Any]) -> str | None:
    """Emit and parse `ops` twice. Return the text, or None if the format cannot express them.

    Raises `AssertionError` if anything changes silently.
    """
    try:
        text = action_format.emit(ops, view)
    except ParseError:
        raise AssertionError(f"{action_format.name} refused {ops} as if it had read them") from None
    except AgentError:
        return None
    read = action_format.parse(text, view)
    if all(action_format.supported_ops[type(op)].kind == "lossless" for op in ops):
        alone = len(ops) == 1
        said, parsed = (ops, read) if alone else (merge_moves(ops), merge_moves(read))
        assert same(said, parsed, view), f"{action_format.name}: {said} was said as {text!r} and read as {parsed}"
    again = action_format.parse(action_format.emit(read, view), view)
    assert again == read, f"{action_format.name}: {read} was read back as {again}"
    return text


def same(said: Sequence[Any], parsed: Sequence[Any], view: ScreenView) -> bool:
    """Whether two lists of ops are equal, with points within one unit of the second's space."""
    return len(said) == len(parsed) and all(
        type(one) is type(other)
        and all(_equal(getattr(one, item.name), getattr(other, item.name), view) for item in fields(one))
        for one, other in zip(said, parsed, strict=True)
    )


def _equal(said: Any, parsed: Any, view: ScreenView) -> bool:
    if isinstance(said, Point) and isinstance(parsed, Point):
        sides = (view.screen_width, view.screen_height)
        units = (parsed.space.width, parsed.space.height)
        reach = [
            0 if parsed.space == view.screen else math.ceil(side / _finest(unit))
            for side, unit in zip(sides, units, strict=True)
        ]
        apart = [abs(a - b) for a, b in zip(to_screen_px(said, *sides), to_screen_px(parsed, *sides), strict=True)]
        return all(distance <= most for distance, most in zip(apart, reach, strict=True))
    if isinstance(said, tuple) and isinstance(parsed, tuple):
        return len(said) == len(parsed) and all(_equal(a, b, view) for a, b in zip(said, parsed, strict=True))
    return said == parsed


_PIECES = (
    *FRAGMENTS, "1001", "-1", "1e999", "NaN", "null", "true", '"x"', '"keys"', '"text"', '"action"', "left_click",
    "click", "\x00", "\ud800", "0.5", "99999999999999999999", "//", "=", ",,", "~", "import os", "__import__('os')",
    "while True: pass", "\u2028", "[" * 990, '{"a":' * 400, "]" * 990, "(" * 200, "for i in range(20):\n    ",
    "1" + "0" * 5000,
)  # fmt: skip


def corrupted(text: str, others: Sequence[str], chance: random.Random) -> str:
    """Return `text` after one to four random cuts, duplications, splices, insertions or deletions."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice((0, 1, 1, 2, 5, 20)))
        match chance.randrange(7):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:start] + chance.choice(_PIECES) + text[start:]
            case 2:
                text = text[:start] + chance.choice(_PIECES) + text[end:]
            case 3:
                text = text[:start]
            case 4:
                text = text[:end] + text[start:]
            case 5:
                other = chance.choice(others)
                text = text[:start] + other[chance.randrange(len(other) + 1) :]
            case _:
                text = (
                    text[:start]
                    + chr(chance.choice((chance.randrange(32, 127), chance.randrange(0x3000))))
                    + text[end:]
                )
    return text


def parse_or_error(action_format: ActionFormat, text: str, view: ScreenView) -> list[Any] | ParseError:
    """Return the ops or the `ParseError` of a reply; other exceptions propagate."""
    try:
        return action_format.parse(text, view)
    except ParseError as error:
        found = error
    assert 0 <= found.span[0] <= found.span[1] <= len(text), f"{action_format.name}: span {found.span} of {text!r}"
    assert found.reason, f"{action_format.name}: no reason for {text!r}"
    assert "\n" not in found.reason, f"{action_format.name}: {found.reason!r}"
    return found


def shifted(op: Any, by: int) -> Any:
    """Return `op` with every point moved right by `by` pixels."""

    def moved(value: Any) -> Any:
        if isinstance(value, Point):
            return Point(value.x + by, value.y, value.space)
        return tuple(map(moved, value)) if isinstance(value, tuple) else value

    return type(op)(**{item.name: moved(getattr(op, item.name)) for item in fields(op)})


def clicks_at(action_format: ActionFormat, view: ScreenView, x: int, y: int) -> None:
    """Assert that a click on a pixel round-trips within one unit of the format's space."""
    (click,) = merge_moves(action_format.parse(action_format.emit([Click(Point(x, y, view.screen))], view), view))
    assert isinstance(click, Click)
    assert click.point is not None
    at = to_screen_px(click.point, view.screen_width, view.screen_height)
    units = (click.point.space.width, click.point.space.height)
    for got, wanted, side, unit in zip(at, (x, y), (view.screen_width, view.screen_height), units, strict=True):
        assert abs(got - wanted) <= max(1, math.ceil(side / _finest(unit))), f"{action_format.name}: {at} for {(x, y)}"


def _finest(units: float) -> float:
    """Return the steps of an axis: 1000 on a 0..1 scale (three decimals)."""
    return units if units > 1 else 1000


_FORBIDDEN = ("exec", "open", "import", "os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pty.")
_executed: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    nameless = event == "open" and arguments[:1] == (
        "",
    )  # Python's parser looks for the file of code that it cannot read
    if _executed is not None and event.startswith(_FORBIDDEN) and not nameless:
        _executed.append(f"{event} {arguments!r}"[:200])


sys.addaudithook(_audit)


@contextmanager
def audited() -> Iterator[list[str]]:
    """Collect audit events of executed code, opened files and started programs."""
    global _executed
    found: list[str] = []
    _executed = found
    try:
        yield found
    finally:
        _executed = None
