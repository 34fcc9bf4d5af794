"""Deskhand's own dialect: compact JSON. Invariant: one table says what an op looks like, and the prompt, the JSON schema, `parse`
and `emit` all follow from it; `parse(emit(ops)) == ops`, and anything not understood is a `ParseError`.

A reply is one object or a list of objects. Points are relative, 0..1000 of the screen's width and height, where 1000 is the
far edge. `emit` writes a point of another space as the nearest integer of that scale.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, dataclass, fields
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.ops import REL_1000, Op, Point
from deskhand.errors import AgentError, ParseError

NAME = "deskhand_json"
MAX_OPS = 16
"""Ops in one reply, at most."""

_COORDINATE = {"type": "number", "minimum": 0, "maximum": 1000}
_BUTTON = {"type": "string", "enum": ["left", "middle", "right", "back", "forward"]}
_NAME = {"type": "string", "minLength": 1}
_NAMES = {"type": "array", "items": _NAME, "minItems": 1, "maxItems": 6}
_MODIFIERS = {"type": "array", "items": _NAME, "minItems": 0, "maxItems": 6}
_NOTCHES = {"type": "integer", "minimum": -100, "maximum": 100}
_PAIR = {"type": "array", "items": _COORDINATE, "minItems": 2, "maxItems": 2}
_TEXT = {"type": "string"}


@dataclass(frozen=True, slots=True)
class _Spec:
    """How one op is written: `keys` in the order of writing, those that must be there, those left out when default."""

    cls: type
    keys: dict[str, dict[str, Any]]
    required: tuple[str, ...]
    brief: tuple[str, ...] = ()
    example: str = ""
    about: str = ""


_XY = {"x": _COORDINATE, "y": _COORDINATE}
_SPECS: dict[str, _Spec] = {
    "click": _Spec(
        ir.Click,
        {**_XY, "button": _BUTTON, "count": {"type": "integer", "minimum": 1, "maximum": 3}, "modifiers": _MODIFIERS},
        (),
        ("button", "count", "modifiers"),
        '{"op":"click","x":512,"y":300}',
        'click there; optional "button":"right", "count":2 for a double click, "modifiers":["ctrl"]',
    ),
    "move": _Spec(ir.Move, _XY, ("x", "y"), (), '{"op":"move","x":512,"y":300}', "move the pointer"),
    "mouse_down": _Spec(
        ir.MouseDown, {**_XY, "button": _BUTTON}, (), ("button",), '{"op":"mouse_down","x":512,"y":300}', "press and hold a button"
    ),
    "mouse_up": _Spec(
        ir.MouseUp, {**_XY, "button": _BUTTON}, (), ("button",), '{"op":"mouse_up","x":512,"y":300}', "release a button"
    ),
    "drag": _Spec(
        ir.Drag,
        {"path": {"type": "array", "items": _PAIR, "minItems": 2, "maxItems": 64}, "button": _BUTTON, "modifiers": _MODIFIERS},
        ("path",),
        ("button", "modifiers"),
        '{"op":"drag","path":[[100,200],[300,400]]}',
        "hold a button along the path",
    ),
    "scroll": _Spec(
        ir.Scroll,
        {**_XY, "dx": _NOTCHES, "dy": _NOTCHES, "modifiers": _MODIFIERS},
        ("dx", "dy"),
        ("modifiers",),
        '{"op":"scroll","x":512,"y":300,"dx":0,"dy":3}',
        "turn the wheel; dx positive is right, dy positive is down",
    ),
    "type": _Spec(ir.Type, {"text": _TEXT}, ("text",), (), '{"op":"type","text":"hello"}', "type text; \\n is the Return key"),
    "key": _Spec(ir.Key, {"keys": _NAMES}, ("keys",), (), '{"op":"key","keys":["ctrl","s"]}', "press keys together"),
    "key_down": _Spec(ir.KeyDown, {"key": _NAME}, ("key",), (), '{"op":"key_down","key":"shift"}', "press and hold a key"),
    "key_up": _Spec(ir.KeyUp, {"key": _NAME}, ("key",), (), '{"op":"key_up","key":"shift"}', "release a key"),
    "wait": _Spec(
        ir.Wait,
        {"seconds": {"type": "number", "minimum": 0, "maximum": 60}},
        ("seconds",),
        (),
        '{"op":"wait","seconds":1}',
        "wait for the screen to change",
    ),
    "screenshot": _Spec(ir.Screenshot, {}, (), (), '{"op":"screenshot"}', "look again"),
    "zoom": _Spec(
        ir.Zoom,
        {**_XY, "x2": _COORDINATE, "y2": _COORDINATE},
        ("x", "y", "x2", "y2"),
        (),
        '{"op":"zoom","x":100,"y":100,"x2":300,"y2":300}',
        "look at a rectangle of the screen",
    ),
    "done": _Spec(ir.Done, {}, (), (), '{"op":"done"}', "the task is finished"),
    "fail": _Spec(ir.Fail, {"reason": _TEXT}, ("reason",), (), '{"op":"fail","reason":""}', "the task cannot be done"),
    "answer": _Spec(ir.Answer, {"text": _TEXT}, ("text",), (), '{"op":"answer","text":""}', "the final answer in words"),
}
_NAME_OF = {spec.cls: name for name, spec in _SPECS.items()}
_POINTS = {"point": ("x", "y"), "top_left": ("x", "y"), "bottom_right": ("x2", "y2")}

PROMPT = "\n".join(
    [
        "Reply with one JSON object, or a list of objects that are performed in order, and nothing else.",
        "x and y are 0..1000 of the screen's width and height, from the top left corner. The objects:",
        *(f"{spec.example}  {spec.about}" for spec in _SPECS.values()),
        'x and y of "click", "mouse_down", "mouse_up" and "scroll" may both be left out: where the pointer is.',
        'When the task is finished reply {"op":"done"}; nothing may follow it.',
    ]
)


def schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a reply, for constrained decoding and for documents."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {name: _object_schema(name, spec) for name, spec in _SPECS.items()} | {"op": {"oneOf": _references()}},
        "oneOf": [{"$ref": "#/$defs/op"}, {"type": "array", "items": {"$ref": "#/$defs/op"}, "minItems": 1, "maxItems": MAX_OPS}],
    }


def _references() -> list[dict[str, Any]]:
    return [{"$ref": f"#/$defs/{name}"} for name in _SPECS]


def _object_schema(name: str, spec: _Spec) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "object",
        "properties": {"op": {"const": name}, **spec.keys},
        "required": ["op", *spec.required],
        "additionalProperties": False,
    }
    if "x" in spec.keys and "x" not in spec.required:
        made["dependentRequired"] = {"x": ["y"], "y": ["x"]}
    return made


def parse(text: str) -> list[Op]:
    """Read a reply. Raises `ParseError` naming the characters that were not understood."""
    found = _objects(text)
    if not 1 <= len(found) <= MAX_OPS:
        raise ParseError((0, len(text)), f"a reply holds 1 to {MAX_OPS} objects, not {len(found)}")
    made: list[Op] = []
    for value, span in found:
        try:
            _check_object(value)
            if made and isinstance(made[-1], ir.TERMINAL_OPS):
                raise AgentError(f"nothing may follow {_NAME_OF[type(made[-1])]}")
        except AgentError as error:
            raise ParseError(span, str(error)) from None
        made.append(_build(value))
    return made


def emit(ops: list[Op]) -> str:
    """Write a reply that `parse` reads back as `ops`. Raises `AgentError` for what the dialect cannot say."""
    if not 1 <= len(ops) <= MAX_OPS:
        raise AgentError(f"a reply holds 1 to {MAX_OPS} ops, not {len(ops)}")
    if any(isinstance(op, ir.TERMINAL_OPS) for op in ops[:-1]):
        raise AgentError("nothing may follow done, fail or answer")
    objects = [_take(op) for op in ops]
    for value in objects:
        _check_object(value)
    return json.dumps(objects[0] if len(objects) == 1 else objects, ensure_ascii=False, separators=(",", ":"))


def _objects(text: str) -> list[tuple[Any, tuple[int, int]]]:
    """The JSON values of the reply with their spans."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
    position = _skip(text, 0)
    try:
        if text[position : position + 1] != "[":
            value, end = decoder.raw_decode(text, position)
            return _at_end(text, end, [(value, (position, end))])
        found: list[tuple[Any, tuple[int, int]]] = []
        position = _skip(text, position + 1)
        while text[position : position + 1] != "]" or found:
            value, end = decoder.raw_decode(text, position)
            found.append((value, (position, end)))
            position = _skip(text, end)
            if text[position : position + 1] == "]":
                break
            if text[position : position + 1] != ",":
                raise ParseError((position, len(text)), "expected , or ] after an object of the list")
            position = _skip(text, position + 1)
        return _at_end(text, position + 1, found)
    except json.JSONDecodeError as error:
        raise ParseError((min(error.pos, len(text)), len(text)), f"not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ParseError((position, len(text)), f"not JSON: {reason}") from None


def _skip(text: str, position: int) -> int:
    while text[position : position + 1] in (" ", "\t", "\n", "\r"):
        position += 1
    return position


def _at_end(text: str, end: int, found: list[tuple[Any, tuple[int, int]]]) -> list[tuple[Any, tuple[int, int]]]:
    rest = _skip(text, end)
    if rest != len(text):
        raise ParseError((rest, len(text)), "unexpected text after the reply's JSON")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is given twice")
    return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _check_object(value: Any) -> None:
    """Raise `AgentError` unless `value` is an object of `schema()`."""
    if not isinstance(value, dict):
        raise AgentError("expected an object")
    name = value.get("op")
    if not isinstance(name, str) or name not in _SPECS:
        raise AgentError(f"unknown op {_short(name)}; known: {', '.join(_SPECS)}")
    spec = _SPECS[name]
    for key in value:
        if key != "op" and key not in spec.keys:
            raise AgentError(f"{name} has no key {_short(key)}; its keys: {', '.join(spec.keys) or 'none'}")
    for key in spec.required:
        if key not in value:
            raise AgentError(f"{name} needs the key {key}")
    if "x" in spec.keys and ("x" in value) != ("y" in value):
        raise AgentError(f"{name} needs x and y together, or neither")
    for key, rule in spec.keys.items():
        if key in value:
            _check_value(f"{name}.{key}", value[key], rule)


_TYPES: dict[str, tuple[type, ...]] = {"number": (int, float), "integer": (int,), "string": (str,), "array": (list,)}


def _check_value(where: str, value: Any, rule: dict[str, Any]) -> None:
    if isinstance(value, bool) or not isinstance(value, _TYPES[rule["type"]]):
        raise AgentError(f"{where} must be a {rule['type']}, not {_short(value)}")
    if isinstance(value, (int, float)):
        if not rule["minimum"] <= value <= rule["maximum"]:
            raise AgentError(f"{where}={_short(value)} is outside {rule['minimum']}..{rule['maximum']}")
    elif isinstance(value, str):
        if len(value) < rule.get("minLength", 0) or value not in rule.get("enum", [value]):
            raise AgentError(f"{where}={_short(value)} is not one of {', '.join(rule.get('enum', ['a non-empty text']))}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise AgentError(f"{where} is not Unicode text: it holds half of a surrogate pair")
    else:
        if not rule["minItems"] <= len(value) <= rule["maxItems"]:
            raise AgentError(f"{where} must hold {rule['minItems']} to {rule['maxItems']} items, not {len(value)}")
        for item in value:
            _check_value(where, item, rule["items"])


def _short(value: Any) -> str:
    written = value if isinstance(value, str) else f"{value}" if isinstance(value, float) else json.dumps(value, default=str)
    return ascii(written[:40])[1:-1] + ("…" if len(written) > 40 else "")


def _build(value: dict[str, Any]) -> Op:
    spec = _SPECS[value["op"]]
    given: dict[str, Any] = {}
    for item in fields(spec.cls):
        if item.name in _POINTS:
            x, y = _POINTS[item.name]
            given[item.name] = Point(value[x], value[y], REL_1000) if x in value else None
        elif item.name == "path":
            given["path"] = tuple(Point(x, y, REL_1000) for x, y in value["path"])
        elif item.name in value:
            found = value[item.name]
            given[item.name] = tuple(found) if isinstance(found, list) else found
    return spec.cls(**given)


def _take(op: Op) -> dict[str, Any]:
    name = _NAME_OF[type(op)]
    spec = _SPECS[name]
    values: dict[str, Any] = {}
    for item in fields(op):
        found = getattr(op, item.name)
        if item.name in spec.brief and item.default is not MISSING and found == item.default:
            continue
        if item.name in _POINTS:
            if found is not None:
                values.update(zip(_POINTS[item.name], _coordinates(found), strict=True))
        elif item.name == "path":
            values["path"] = [list(_coordinates(point)) for point in found]
        else:
            values[item.name] = list(found) if isinstance(found, tuple) else _plain(found)
    return {"op": name} | {key: values[key] for key in spec.keys if key in values}


def _coordinates(point: Point) -> tuple[float, float]:
    return _coordinate(point.x, point.space.width, point), _coordinate(point.y, point.space.height, point)


def _coordinate(value: float, extent: float, point: Point) -> Any:
    if point.space == REL_1000 or not math.isfinite(value):
        return _plain(value)
    if point.space.kind == "pixels":
        if not 0 <= value < extent:
            raise AgentError(f"{value:g} is off the screen of {extent:g} pixels")
        return round((math.floor(value) + 0.5) * 1000 / extent)
    return round(value * 1000 / extent)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
