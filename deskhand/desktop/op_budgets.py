"""How long ops on a local desktop may take, whatever its guests do: `op_budget_s`.

`local.action_executor` ends its waits for the guests within the budget; `remote.server_desktop` waits that long for a
desktop server.
"""

from __future__ import annotations

from deskhand.actions.durations import duration_s
from deskhand.actions.ops import Click, Drag, Key, KeyDown, KeyUp, Op, Scroll, Type, to_screen_px

BETWEEN_OPS_TIMEOUT_S = 2.0
DRAIN_TIMEOUT_S = 10.0
"""For a program to read its input, before and after the keyboard map changes and between equal keys."""
FOCUS_TIMEOUT_S = 1.0
_DOUBLE_CLICK_S = 1.0
_STROKE_S = 0.3
"""For a program that ignores a key for some time after it was pressed."""


def op_budget_s(op: Op, width: int, height: int) -> float:
    """Return the maximum duration of `op` on a screen of that size and its waits for the guests, in seconds."""
    strokes = 0
    match op:
        case Type():
            strokes = len(op.text)
        case Key():
            strokes = len(op.keys)
        case KeyDown() | KeyUp():
            strokes = 1
        case Click() | Drag() | Scroll():
            strokes = len(op.modifiers)
    budget_s = BETWEEN_OPS_TIMEOUT_S
    if strokes:
        budget_s += FOCUS_TIMEOUT_S + 2 * DRAIN_TIMEOUT_S + strokes * _STROKE_S
    match op:
        case Click():
            return budget_s + _DOUBLE_CLICK_S + duration_s(op)
        case Drag():
            path = [to_screen_px(point, width, height) for point in op.path]
            return budget_s + 2 * BETWEEN_OPS_TIMEOUT_S + 2 * duration_s(op, path)
        case _:
            return budget_s + duration_s(op)
