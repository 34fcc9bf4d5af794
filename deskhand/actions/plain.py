"""Ops as plain JSON. Invariant: points are pixels of the screen, so ops of every dialect can be compared; what has its default
value is left out.

`{"op": "click", "x": 960, "y": 540}` · `{"op": "drag", "path": [[1, 2], [3, 4]], "button": "right"}` · `{"op": "scroll", "dy": 3}`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from deskhand.actions.ops import Op, Point, to_screen_px

_NAMES = {"MouseDown": "mouse_down", "MouseUp": "mouse_up", "KeyDown": "key_down", "KeyUp": "key_up"}
_PLACES = {"point": ("x", "y"), "top_left": ("x", "y"), "bottom_right": ("x2", "y2")}
_UNSAID = {"button": "left", "count": 1, "modifiers": (), "dx": 0, "dy": 0, "reason": ""}


def name_of(kind: type[Any]) -> str:
    """`mouse_down` for `MouseDown`."""
    return _NAMES.get(kind.__name__, kind.__name__.lower())


def plain_op(op: Op, width: int, height: int) -> dict[str, Any]:
    """`op` on a screen of `width` x `height` pixels. Raises `AgentError` when a point is off the screen."""
    made: dict[str, Any] = {"op": name_of(type(op))}
    for item in fields(op):
        value = getattr(op, item.name)
        if value is None or (item.name in _UNSAID and value == _UNSAID[item.name]):
            continue
        if isinstance(value, Point):
            made.update(zip(_PLACES[item.name], to_screen_px(value, width, height), strict=True))
        elif item.name == "path":
            made["path"] = [list(to_screen_px(point, width, height)) for point in value]
        else:
            made[item.name] = list(value) if isinstance(value, tuple) else value
    return made
