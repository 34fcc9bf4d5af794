"""Ops as plain JSON. Invariant: points are pixels of the screen, so ops of every dialect can be compared; what has its default
value is left out.

`{"op": "click", "point": [960, 540]}`, `{"op": "drag", "path": [[1, 2], [3, 4]], "button": "right"}`, `{"op": "scroll", "dy": 3}`.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_args

from deskhand.actions.ops import Op, Point, to_screen_px

_NAMES = {"MouseDown": "mouse_down", "MouseUp": "mouse_up", "KeyDown": "key_down", "KeyUp": "key_up"}


def name_of(kind: type[Any]) -> str:
    """`mouse_down` for `MouseDown`."""
    return _NAMES.get(kind.__name__, kind.__name__.lower())


def plain_op(op: Op, width: int, height: int) -> dict[str, Any]:
    """`op` on a screen of `width` x `height` pixels. Raises `AgentError` when a point is off the screen."""

    def plain(value: Any) -> Any:
        if isinstance(value, Point):
            return list(to_screen_px(value, width, height))
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    values = {item.name: (getattr(op, item.name), item.default) for item in fields(op)}
    return {"op": name_of(type(op))} | {name: plain(value) for name, (value, default) in values.items() if value != default}


def completed(op: dict[str, Any]) -> dict[str, Any]:
    """A plain op with the defaults that were left out. Raises `KeyError` when there is no such op."""
    return _DEFAULTS[op["op"]] | op


_DEFAULTS: dict[str, dict[str, Any]] = {
    name_of(kind): {
        item.name: list(item.default) if isinstance(item.default, tuple) else item.default
        for item in fields(kind)
        if item.default is not MISSING
    }
    for kind in get_args(Op)
}
OPS = tuple(_DEFAULTS)
"""The names of ops."""
