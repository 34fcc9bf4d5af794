"""JSON form of ops, with points in screen pixels so that ops of different formats can be compared. Default values are
omitted.

`{"op": "click", "point": [960, 540]}`, `{"op": "drag", "path": [[1, 2], [3, 4]], "button": "right"}`, `{"op":
"scroll", "dy": 3}`
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any, get_args

from deskhand.actions.ops import Op, Point, Space, screen_px, to_screen_px
from deskhand.errors import AgentError


def name_of(kind: type[Any]) -> str:
    """Return the JSON name of an op class, e.g. `mouse_down` for `MouseDown`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def op_to_json(op: Op, width: int, height: int) -> dict[str, Any]:
    """Convert an op to JSON for a `width` x `height` screen. Raises `AgentError` if a point is off the screen."""

    def plain(value: Any) -> Any:
        if isinstance(value, Point):
            return list(to_screen_px(value, width, height))
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    values = {item.name: (getattr(op, item.name), item.default) for item in fields(op)}
    return {"op": name_of(type(op))} | {
        name: plain(value) for name, (value, default) in values.items() if value != default
    }


OPS: dict[str, type[Any]] = {name_of(kind): kind for kind in get_args(Op)}
"""Op classes by name."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {
        item.name: list(item.default) if isinstance(item.default, tuple) else item.default
        for item in fields(kind)
        if item.default is not MISSING
    }
    for name, kind in OPS.items()
}


def with_defaults(op: dict[str, Any]) -> dict[str, Any]:
    """Fill in omitted defaults. Raises `KeyError` if the op is unknown."""
    return _DEFAULTS[op["op"]] | op


def op_from_json(plain: object, width: int, height: int) -> Op:
    """Reverse `op_to_json`. Raises `AgentError` for an unknown op or field, or a value of the wrong type."""
    if not isinstance(plain, dict) or not isinstance(plain.get("op"), str) or plain["op"] not in OPS:
        raise AgentError(f'an op is an object with "op" one of {", ".join(sorted(OPS))}')
    kind = OPS[plain["op"]]
    known = {item.name for item in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in plain.items():
        if name == "op":
            continue
        if name not in known:
            raise AgentError(
                f"{plain['op']} has no field {str(name)[:40]!r}; it has: {', '.join(sorted(known)) or 'none'}"
            )
        values[name] = _read(name, value, screen_px(width, height))
    try:
        return kind(**values)
    except TypeError:
        raise AgentError(
            f"{plain['op']} needs all of: {', '.join(sorted(known - set(_DEFAULTS[plain['op']])))}"
        ) from None


def _read(name: str, value: Any, space: Space) -> Any:
    match name, value:
        case "point" | "top_left" | "bottom_right", [int() | float() as x, int() | float() as y]:
            return Point(x, y, space)
        case "path", list():
            return tuple(_read("point", point, space) for point in value)
        case "modifiers" | "keys", list() if all(isinstance(key, str) for key in value):
            return tuple(value)
        case (
            ("point", None)
            | ("text" | "reason" | "key", str())
            | ("button", "left" | "middle" | "right" | "back" | "forward")
        ):
            return value
        case ("count" | "dx" | "dy", int()) | ("seconds", int() | float()) if not isinstance(value, bool):
            return value
        case _:
            raise AgentError(f"{name}: {str(value)[:60]!r} is not what it takes")
