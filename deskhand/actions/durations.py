"""How long ops take that an agent asks for. Used by local desktops, and by episodes to tell an agent that spends its
time from a machine that is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from deskhand.actions.ops import Click, Drag, Op, Scroll, Type, Wait

CLICK_S = 0.05
NOTCH_S = 0.01
CHARACTER_S = 0.002
DRAG_STEP_PX = 12
DRAG_STEP_S = 0.004


def duration_s(op: Op, points: Sequence[tuple[int, int]] = ()) -> float:
    """Return the seconds that `op` takes on a machine that does not wait for anything. `points` in screen pixels."""
    match op:
        case Wait():
            return op.seconds
        case Drag():
            distance_px = sum(max(abs(a[0] - b[0]), abs(a[1] - b[1])) for a, b in pairwise(points))
            return DRAG_STEP_S * (distance_px / DRAG_STEP_PX + 2 * len(points))
        case Click():
            return CLICK_S * op.count
        case Scroll():
            return NOTCH_S * (abs(op.dx) + abs(op.dy))
        case Type():
            return CHARACTER_S * len(op.text)
        case _:
            return 0.0
