"""Merging of moves with ops that act at the pointer position.

Some formats have no coordinates in a click: the model moves first, then clicks. Parsing merges the two into one op
with a point, so that metrics such as first-click accuracy see the target. Merging does not change what is executed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deskhand.actions.ops import Click, Drag, KeyDown, KeyUp, MouseDown, MouseUp, Move, Op, Point, Scroll

AT_POINTER: tuple[type[Any], ...] = (Click, MouseDown, MouseUp, Scroll)

DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
"""Scroll directions, as signs of `Scroll.dx` and `Scroll.dy`."""


def direction_of(dx: int, dy: int) -> str:
    """Return the direction of a scroll along one axis."""
    return ("right" if dx > 0 else "left") if dx else ("up" if dy < 0 else "down")


@dataclass(frozen=True, slots=True)
class DragTo:
    """A drag with the left button from the pointer position. Not an op: `merge_moves` converts it."""

    point: Point
    modifiers: tuple[str, ...] = ()


def merge_moves(ops: Sequence[Op | DragTo], kinds: Collection[type[Any]] = AT_POINTER) -> list[Op]:
    """Merge each `Move` into the op right after it, if that is one of `kinds` and has no point.

    A `DragTo` after a move becomes a `Drag`; any other becomes a press at the pointer and a release at its point, with
    its keys held meanwhile.
    """
    merged: list[Op] = []
    for op in ops:
        last = merged[-1] if merged else None
        if isinstance(op, DragTo):
            if isinstance(last, Move):
                merged[-1] = Drag((last.point, op.point), modifiers=op.modifiers)
            else:
                merged += [*map(KeyDown, op.modifiers), MouseDown(), MouseUp(op.point)]
                merged += map(KeyUp, reversed(op.modifiers))
        elif isinstance(last, Move) and isinstance(op, tuple(kinds)) and getattr(op, "point", None) is None:
            merged[-1] = replace(op, point=last.point)  # type: ignore[call-arg]
        else:
            merged.append(op)
    return merged


def split_moves(op: Op, kinds: Collection[type[Any]]) -> list[Op | DragTo]:
    """Reverse `merge_moves`: split an op of `kinds` into a move and an op without a point."""
    if isinstance(op, Drag) and DragTo in kinds and len(op.path) == 2 and op == Drag(op.path):
        return [Move(op.path[0]), DragTo(op.path[1])]
    point = getattr(op, "point", None)
    if isinstance(op, tuple(kinds)) and point is not None and not isinstance(op, (Move, DragTo)):
        return [Move(point), replace(op, point=None)]  # type: ignore[call-arg]
    return [op]
