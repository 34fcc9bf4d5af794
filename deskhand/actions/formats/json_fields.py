"""The parts of a written action: each joins some JSON keys with some fields of an op. Invariant: what a part writes, it reads back
equal, and it has a rule for every key that it reads.

A part is made once for a view, since the bounds of its coordinates are those of the image that the model sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deskhand.actions.formats import json_schema
from deskhand.actions.formats.json_schema import Rule, strip_description
from deskhand.actions.formats.limits import MAX_KEYS, MAX_PATH, MAX_SCROLL_NOTCHES
from deskhand.actions.key_names import KeyNaming
from deskhand.actions.ops import Point, Space, in_space
from deskhand.errors import AgentError

Values = Mapping[str, Any]
"""JSON values by key."""
Fields = dict[str, Any]
"""Values of an op by field."""

LONGEST_CHORD = 200


@dataclass(frozen=True)
class JsonField:
    """`read` gets the keys that were given and returns the fields they say; `write` gets all fields and returns keys to write.

    Both raise `AgentError` for what cannot be said.
    """

    keys: Mapping[str, Rule]
    fields: tuple[str, ...]
    read: Callable[[Values], Fields]
    write: Callable[[Values], dict[str, Any]]
    required: tuple[str, ...] = ()
    also: Mapping[str, Rule] = field(default_factory=dict)
    """Keys that are read and not offered."""
    lenient: bool = False
    """`read` itself says what is missing: less than `required` may do."""
    together: bool = False
    """All of `keys` are given, or none."""


def coordinate(space: Space, *, whole: bool = True) -> tuple[Rule, Rule]:
    """The rules of x and y in `space`; `whole`: integers only."""
    if space.kind == "pixels":
        if whole:
            return json_schema.integer(0, int(space.width) - 1), json_schema.integer(0, int(space.height) - 1)
        return json_schema.number_below(0, space.width), json_schema.number_below(0, space.height)
    make = json_schema.integer if whole else json_schema.number
    return make(0, int(space.width)), make(0, int(space.height))


def _point(x: Any, y: Any, space: Space) -> Point:
    return Point(strip_description(x), strip_description(y), space)


def _numbers(point: Point, space: Space) -> tuple[Any, Any]:
    moved = in_space(point, space)
    return strip_description(moved.x), strip_description(moved.y)


def xy(
    space: Space,
    field: str = "point",
    keys: tuple[str, str] = ("x", "y"),
    *,
    required: bool = False,
    whole: bool = True,
) -> JsonField:
    """A point as two numbers under keys of their own."""
    x, y = keys

    def read(values: Values) -> Fields:
        if (x in values) != (y in values):
            raise AgentError(f"needs {x} and {y} together, or neither")
        return {field: _point(values[x], values[y], space)} if x in values else {}

    def write(fields: Values) -> dict[str, Any]:
        return _asked(fields[field], required, lambda point: dict(zip(keys, _numbers(point, space), strict=True)))

    rule = dict(zip(keys, coordinate(space, whole=whole), strict=True))
    return JsonField(rule, (field,), read, write, keys if required else (), together=True)


def pair(key: str, space: Space, field: str = "point", *, required: bool = False) -> JsonField:
    """A point as a list of two numbers."""

    def read(values: Values) -> Fields:
        if key not in values:
            return {}
        x, y = values[key]
        return {field: _point(x, y, space)}

    def write(fields: Values) -> dict[str, Any]:
        return _asked(fields[field], required, lambda point: {key: list(_numbers(point, space))})

    return JsonField(
        {key: json_schema.fixed_items(*coordinate(space))}, (field,), read, write, (key,) if required else ()
    )


def _asked(point: Point | None, required: bool, written: Callable[[Point], dict[str, Any]]) -> dict[str, Any]:
    if point is None:
        if required:
            raise AgentError("it needs a point")
        return {}
    return written(point)


def corners(key: str, space: Space) -> JsonField:
    """A rectangle as [left, top, right, bottom], in edges: the far edge is the width or height itself."""
    edges = Space("relative", space.width, space.height)
    x, y = coordinate(edges)

    def read(values: Values) -> Fields:
        left, top, right, bottom = values[key]
        return {"top_left": _point(left, top, edges), "bottom_right": _point(right, bottom, edges)}

    def write(fields: Values) -> dict[str, Any]:
        return {key: [*_numbers(fields["top_left"], edges), *_numbers(fields["bottom_right"], edges)]}

    return JsonField({key: json_schema.fixed_items(x, y, x, y)}, ("top_left", "bottom_right"), read, write, (key,))


def path(key: str, space: Space, *, named: bool, whole: bool = True) -> JsonField:
    """A drag's path: a list of {"x", "y"} when `named`, else of [x, y]."""
    x, y = coordinate(space, whole=whole)
    rule = json_schema.items(json_schema.object_of(x=x, y=y) if named else json_schema.fixed_items(x, y), 2, MAX_PATH)

    def read(values: Values) -> Fields:
        pairs = [(value["x"], value["y"]) if named else value for value in values[key]]
        return {"path": tuple(_point(x, y, space) for x, y in pairs)}

    def write(fields: Values) -> dict[str, Any]:
        numbers = [_numbers(point, space) for point in fields["path"]]
        return {key: [dict(zip("xy", both, strict=True)) if named else list(both) for both in numbers]}

    return JsonField({key: rule}, ("path",), read, write, (key,))


def ends(start: JsonField, end: JsonField) -> JsonField:
    """A drag from one point to another; `start` and `end` are parts for the fields "start" and "end"."""

    def read(values: Values) -> Fields:
        return {"path": (start.read(values)["start"], end.read(values)["end"])}

    def write(fields: Values) -> dict[str, Any]:
        if len(fields["path"]) != 2:
            raise AgentError("a drag goes from one point to another here")
        first, last = fields["path"]
        return start.write({"start": first}) | end.write({"end": last})

    return JsonField(
        {**start.keys, **end.keys},
        ("path",),
        read,
        write,
        (*start.required, *end.required),
        {**start.also, **end.also},
        start.lenient or end.lenient,
    )


def choice(
    key: str, field: str, names: Mapping[str, Any], *, default: str | None = None, brief: bool = False
) -> JsonField:
    """One of several names. `default` is read where the key is left out, and with `brief` it is left out in writing."""
    name_of = {value: name for name, value in names.items()}

    def read(values: Values) -> Fields:
        if key in values:
            return {field: names[values[key]]}
        return {field: names[default]} if default is not None else {}

    def write(fields: Values) -> dict[str, Any]:
        name = name_of.get(fields[field])
        if name is None:
            raise AgentError(f"{field} cannot be {fields[field]!r}; it is one of {', '.join(map(str, name_of))}")
        return {} if brief and name == default else {key: name}

    return JsonField({key: json_schema.one_of(*names)}, (field,), read, write, () if default is not None else (key,))


def numeral(key: str, field: str, rule: Rule, *, default: Any = None) -> JsonField:
    """A number. With a default it may be left out, and it is left out in writing when it is that."""

    def read(values: Values) -> Fields:
        return {field: strip_description(values.get(key, default))}

    def write(fields: Values) -> dict[str, Any]:
        value = strip_description(fields[field])
        return {} if value == default else {key: value}

    return JsonField({key: rule}, (field,), read, write, (key,) if default is None else ())


def text_field(key: str, field: str = "text", *, least: int = 0) -> JsonField:
    """A text as it is."""

    def read(values: Values) -> Fields:
        return {field: values[key]}

    def write(fields: Values) -> dict[str, Any]:
        return {key: fields[field]}

    return JsonField({key: json_schema.text(least)}, (field,), read, write, (key,))


def constant(field: str, value: Any = None) -> JsonField:
    """A field that is not written; what is read is `value`, or nothing when that is None."""
    return JsonField({}, (field,), lambda values: {} if value is None else {field: value}, lambda fields: {})


def key_name(key: str, spelling: KeyNaming) -> JsonField:
    """One key, of an op with the field `key`."""

    def read(values: Values) -> Fields:
        return {"key": spelling.read(values[key])}

    def write(fields: Values) -> dict[str, Any]:
        return {key: spelling.write(fields["key"])}

    return JsonField({key: _name_rule(spelling.pattern, "a key")}, ("key",), read, write, (key,))


def _name_rule(pattern: str, title: str) -> Rule:
    rule = {"type": "string", "minLength": 1, "maxLength": LONGEST_CHORD, "title": title}
    return rule | ({"pattern": pattern} if pattern else {})


def key_list(key: str, spelling: KeyNaming, field: str = "keys", *, required: bool = True) -> JsonField:
    """Keys as a list of names; not required, none is left out."""

    def read(values: Values) -> Fields:
        return {field: tuple(spelling.read(name) for name in values[key])} if key in values else {}

    def write(fields: Values) -> dict[str, Any]:
        names = [spelling.write(name) for name in fields[field]]
        return {key: names} if names or required else {}

    rule = json_schema.items(_name_rule(spelling.pattern, "keys"), int(required), MAX_KEYS)
    return JsonField({key: rule}, (field,), read, write, (key,) if required else ())


def chord(keys: Sequence[str], spelling: KeyNaming, field: str = "keys", *, required: bool = True) -> JsonField:
    """Keys as one text, "ctrl+s", under the first of `keys`; the others are read in its place."""
    rule = _name_rule(spelling.chord_pattern, "keys joined by +")

    def read(values: Values) -> Fields:
        given = [key for key in keys if key in values]
        if len(given) > 1:
            raise AgentError(f"takes only one of {' and '.join(given)}")
        if not given:
            if required:
                raise AgentError(f"needs the key {keys[0]}")
            return {}
        names = spelling.read_chord(values[given[0]])
        if len(names) > MAX_KEYS:
            raise AgentError(f"holds {len(names)} keys; the most is {MAX_KEYS}")
        return {field: names}

    def write(fields: Values) -> dict[str, Any]:
        names = fields[field]
        if len(names) > MAX_KEYS or (required and not names):
            raise AgentError(f"{field} must hold 1 to {MAX_KEYS} keys, not {len(names)}")
        return {keys[0]: spelling.write_chord(names)} if names else {}

    also = dict.fromkeys(keys[1:], rule)
    return JsonField({keys[0]: rule}, (field,), read, write, (keys[0],) if required else (), also, bool(also))


_DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def direction(
    keys: Sequence[str], amount: str, *, unit: int = 1, most: int = MAX_SCROLL_NOTCHES, default: int | None = None
) -> JsonField:
    """The wheel by a direction (under the first of `keys`; the others are read in its place) and an amount of `unit` to the notch.

    `most` bounds the amount; where it may be left out, `default` is what it is then.
    """

    def read(values: Values) -> Fields:
        given = [key for key in keys if key in values]
        if len(given) != 1:
            raise AgentError(f"takes only one of {' and '.join(given)}" if given else f"needs the key {keys[0]}")
        x, y = _DIRECTIONS[values[given[0]]]
        count = notches(values.get(amount, default), unit)
        return {"dx": x * count, "dy": y * count}

    def write(fields: Values) -> dict[str, Any]:
        dx, dy = fields["dx"], fields["dy"]
        if dx and dy:
            raise AgentError("the wheel turns in one direction at a time here")
        name = ("right" if dx > 0 else "left") if dx else ("up" if dy < 0 else "down")
        return {keys[0]: name, amount: abs(dx or dy) * unit}

    rule = json_schema.one_of(*_DIRECTIONS)
    required = (keys[0],) if default is not None else (keys[0], amount)
    offered = {keys[0]: rule, amount: json_schema.integer(0, most)}
    also = dict.fromkeys(keys[1:], rule)
    return JsonField(offered, ("dx", "dy"), read, write, required, also, bool(also))


def wheel(
    dx: str | None,
    dy: str | None,
    *,
    x_sign: int = 1,
    y_sign: int = 1,
    unit: int = 1,
    lenient: bool = False,
    whole: bool = True,
) -> JsonField:
    """The wheel by signed amounts of `unit` to the notch; a sign of 1 is right or down. A key that is None is not there.

    `lenient`: one of the two keys will do in reading.
    """
    keys = [(key, field, sign) for key, field, sign in ((dx, "dx", x_sign), (dy, "dy", y_sign)) if key is not None]
    make = json_schema.integer if whole else json_schema.number
    rule = make(-MAX_SCROLL_NOTCHES * unit, MAX_SCROLL_NOTCHES * unit)

    def read(values: Values) -> Fields:
        if not any(key in values for key, _, _ in keys):
            raise AgentError(f"needs {' or '.join(key for key, _, _ in keys)}")
        return {"dx": 0, "dy": 0} | {field: sign * notches(values.get(key, 0), unit) for key, field, sign in keys}

    def write(fields: Values) -> dict[str, Any]:
        if (dx is None and fields["dx"]) or (dy is None and fields["dy"]):
            raise AgentError("the wheel turns in one direction at a time here")
        return {key: sign * fields[field] * unit for key, field, sign in keys}

    required = tuple(key for key, _, _ in keys)
    return JsonField({key: rule for key, _, _ in keys}, ("dx", "dy"), read, write, required, lenient=lenient)


def notches(amount: float, unit: int) -> int:
    """An amount of the wheel in whole notches: the nearest, and at least one in its direction unless it is 0."""
    count = int(abs(amount) / unit + 0.5)
    return (1 if amount > 0 else -1) * max(1, count) if amount else 0
