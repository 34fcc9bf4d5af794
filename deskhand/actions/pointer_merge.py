"""Ops that act where the pointer is. Invariant: joining a move with the op at the pointer that follows it changes nothing of what
is performed.

Some languages have no place in a click or a press: they move first and act then. Reading such a reply, the two become one op with a
point, which says more to whoever counts clicks on a target.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deskhand.actions.ops import Click, Drag, MouseDown, MouseUp, Move, Op, Point, Scroll

AT_POINTER: tuple[type[Any], ...] = (Click, MouseDown, MouseUp, Scroll)

DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
"""The wheel's directions, as signs of `Scroll.dx` and `Scroll.dy`."""


def direction_of(dx: int, dy: int) -> str:
    """The direction in which the wheel turns, which it does along one axis."""
    return ("right" if dx > 0 else "left") if dx else ("up" if dy < 0 else "down")


@dataclass(frozen=True, slots=True)
class DragTo:
    """Not an op: a drag with the left button from wherever the pointer is. `joined` makes ops of it."""

    point: Point


def merge_moves(ops: Sequence[Op | DragTo], kinds: Collection[type[Any]] = AT_POINTER) -> list[Op]:
    """`ops` with every `Move` merged into the op of one of `kinds` that directly follows it and has no point.

    A `DragTo` behind a move is a `Drag`; any other is a press where the pointer is and a release at its point.
    """
    made: list[Op] = []
    for op in ops:
        last = made[-1] if made else None
        if isinstance(op, DragTo):
            if isinstance(last, Move):
                made[-1] = Drag((last.point, op.point))
            else:
                made += [MouseDown(), MouseUp(op.point)]
        elif isinstance(last, Move) and isinstance(op, tuple(kinds)) and getattr(op, "point", None) is None:
            made[-1] = replace(op, point=last.point)  # type: ignore[call-arg]
        else:
            made.append(op)
    return made


def split_moves(op: Op, kinds: Collection[type[Any]]) -> list[Op | DragTo]:
    """The reverse: an op of one of `kinds` as a move and the op where the pointer is; a drag of two points where kinds has one."""
    if isinstance(op, Drag) and DragTo in kinds and len(op.path) == 2 and op == Drag(op.path):
        return [Move(op.path[0]), DragTo(op.path[1])]
    point = getattr(op, "point", None)
    if isinstance(op, tuple(kinds)) and point is not None and not isinstance(op, (Move, DragTo)):
        return [Move(point), replace(op, point=None)]  # type: ignore[call-arg]
    return [op]
