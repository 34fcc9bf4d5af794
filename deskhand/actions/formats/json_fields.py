"""`JsonField`: maps JSON keys of an action to fields of an op, with a schema rule for each key.

Whatever a field writes it reads back unchanged. The functions below build the fields that formats share: points, keys,
scrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deskhand.actions.formats import json_schema
from deskhand.actions.formats.json_schema import Rule, whole_as_int
from deskhand.actions.formats.limits import MAX_KEYS, MAX_PATH, MAX_SCROLL_NOTCHES
from deskhand.actions.key_names import KeyNaming
from deskhand.actions.ops import Point, Space, in_space
from deskhand.actions.pointer_merge import DIRECTIONS, direction_of
from deskhand.errors import AgentError

Values = Mapping[str, Any]
"""JSON values by key."""
Fields = dict[str, Any]
"""Op values by field name."""

MAX_CHORD_CHARS = 200
REQUIRED: Any = object()
"""Marks a key without a default."""


@dataclass(frozen=True)
class JsonField:
    """`read` converts the given keys to op fields, `write` converts all op fields to keys; both may raise `AgentError`.

    Several optional keys of one field must be given together.
    """

    keys: Mapping[str, Rule]
    fields: tuple[str, ...]
    read: Callable[[Values], Fields]
    write: Callable[[Values], dict[str, Any]]
    required: tuple[str, ...] = ()
    also: Mapping[str, Rule] = field(default_factory=dict)
    """Keys that are accepted but not in the prompt or schema."""
    lenient: bool = False
    """`read` reports missing keys itself and may accept fewer than `required`."""


def single(
    key: str, field: str, rule: Rule, read: Callable[[Any], Any], write: Callable[[Any], Any], default: Any = REQUIRED
) -> JsonField:
    """Map one key to one field. A default makes the key optional and is not written."""

    def write_key(fields: Values) -> dict[str, Any]:
        return {} if default is not REQUIRED and fields[field] == default else {key: write(fields[field])}

    return JsonField(
        {key: rule},
        (field,),
        lambda values: {field: read(values[key]) if key in values else default},
        write_key,
        (key,) if default is REQUIRED else (),
    )


def _same(value: Any) -> Any:
    return value


def text_field(key: str, field: str = "text", *, least: int = 0) -> JsonField:
    return single(key, field, json_schema.text(least), _same, _same)


def number_field(key: str, field: str, rule: Rule, default: Any = REQUIRED) -> JsonField:
    return single(key, field, rule, whole_as_int, whole_as_int, default)


def choice(key: str, field: str, names: Mapping[str, Any], default: Any = REQUIRED) -> JsonField:
    """Map each of several names to a field value."""
    name_of = {value: name for name, value in names.items()}

    def write(value: Any) -> str:
        if value not in name_of:
            raise AgentError(f"{field} cannot be {value!r}; it is one of {', '.join(map(str, name_of))}")
        return name_of[value]

    return single(key, field, json_schema.one_of(*names), names.__getitem__, write, default)


def or_default(field: JsonField, default: Values) -> JsonField:
    """A field that is written and offered as `field`, but may be missing when parsing: it reads as `default` then."""

    def read(values: Values) -> Fields:
        return field.read(values) if all(key in values for key in field.required) else dict(default)

    return replace(field, read=read, lenient=True)


def constant(field: str, value: Any = None) -> JsonField:
    """A field without a key: reads as `value` (or as nothing if None) and is not written."""
    return JsonField({}, (field,), lambda values: {} if value is None else {field: value}, lambda fields: {})


def sample_points(space: Space) -> tuple[Point, Point]:
    """Return two points for the examples in a prompt."""
    width, height = int(space.width), int(space.height)
    return Point(width // 2, height // 3, space), Point(width // 4, height // 5, space)


def coordinate(space: Space, *, whole: bool = True) -> tuple[Rule, Rule]:
    """Return the rules of x and y in `space`; `whole` allows only integers."""
    if space.kind == "pixels":
        if whole:
            return json_schema.integer(0, int(space.width) - 1), json_schema.integer(0, int(space.height) - 1)
        return json_schema.number_below(0, space.width), json_schema.number_below(0, space.height)
    make = json_schema.integer if whole else json_schema.number
    return make(0, int(space.width)), make(0, int(space.height))


def _point(x: Any, y: Any, space: Space) -> Point:
    return Point(whole_as_int(x), whole_as_int(y), space)


def _numbers(point: Point | None, space: Space) -> list[Any]:
    if point is None:
        raise AgentError("it needs a point")
    moved = in_space(point, space)
    return [whole_as_int(moved.x), whole_as_int(moved.y)]


def xy(
    space: Space,
    field: str = "point",
    keys: tuple[str, str] = ("x", "y"),
    *,
    required: bool = False,
    whole: bool = True,
) -> JsonField:
    """A point as two numbers under separate keys."""
    x, y = keys

    def read(values: Values) -> Fields:
        if (x in values) != (y in values):
            raise AgentError(f"needs {x} and {y} together, or neither")
        return {field: _point(values[x], values[y], space)} if x in values else {}

    def write(fields: Values) -> dict[str, Any]:
        if fields[field] is None and not required:
            return {}
        return dict(zip(keys, _numbers(fields[field], space), strict=True))

    rules = dict(zip(keys, coordinate(space, whole=whole), strict=True))
    return JsonField(rules, (field,), read, write, keys if required else ())


def pair(key: str, space: Space, field: str = "point", *, required: bool = False) -> JsonField:
    """A point as a list of two numbers."""
    rule, default = json_schema.fixed_items(*coordinate(space)), REQUIRED if required else None
    return single(
        key, field, rule, lambda xy: _point(xy[0], xy[1], space), lambda point: _numbers(point, space), default
    )


def corners(key: str, space: Space) -> JsonField:
    """A rectangle as [left, top, right, bottom] edges; the far edge equals the width or height."""
    edges = Space("relative", space.width, space.height)
    x, y = coordinate(edges)

    def read(values: Values) -> Fields:
        left, top, right, bottom = values[key]
        return {"top_left": _point(left, top, edges), "bottom_right": _point(right, bottom, edges)}

    def write(fields: Values) -> dict[str, Any]:
        return {key: [*_numbers(fields["top_left"], edges), *_numbers(fields["bottom_right"], edges)]}

    return JsonField({key: json_schema.fixed_items(x, y, x, y)}, ("top_left", "bottom_right"), read, write, (key,))


def path(key: str, space: Space, *, named: bool, whole: bool = True) -> JsonField:
    """A drag path: a list of {"x", "y"} objects if `named`, else of [x, y]."""
    x, y = coordinate(space, whole=whole)
    rule = json_schema.items(json_schema.object_of(x=x, y=y) if named else json_schema.fixed_items(x, y), 2, MAX_PATH)

    def read(items: list[Any]) -> tuple[Point, ...]:
        x, y = ("x", "y") if named else (0, 1)
        return tuple(_point(item[x], item[y], space) for item in items)

    def write(points: tuple[Point, ...]) -> list[Any]:
        numbers = [_numbers(point, space) for point in points]
        return [dict(zip("xy", both, strict=True)) for both in numbers] if named else numbers

    return single(key, "path", rule, read, write)


def endpoints(start: JsonField, end: JsonField) -> JsonField:
    """A drag between two points; `start` and `end` are fields named "start" and "end"."""

    def read(values: Values) -> Fields:
        return {"path": (start.read(values)["start"], end.read(values)["end"])}

    def write(fields: Values) -> dict[str, Any]:
        if len(fields["path"]) != 2:
            raise AgentError("a drag goes from one point to another here")
        first, last = fields["path"]
        return start.write({"start": first}) | end.write({"end": last})

    keys, also = {**start.keys, **end.keys}, {**start.also, **end.also}
    required = (*start.required, *end.required)
    return JsonField(keys, ("path",), read, write, required, also, start.lenient or end.lenient)


def _given_key(values: Values, keys: Sequence[str], *, required: bool = True) -> Any:
    given = [key for key in keys if key in values]
    if len(given) > 1:
        raise AgentError(f"takes only one of {' and '.join(given)}")
    if required and not given:
        raise AgentError(f"needs the key {keys[0]}")
    return given[0] if given else None


def key_name(key: str, naming: KeyNaming) -> JsonField:
    return single(key, "key", _name_rule(naming.pattern, "a key"), naming.read, naming.write_in_json)


def _name_rule(pattern: str, title: str) -> Rule:
    rule = {"type": "string", "minLength": 1, "maxLength": MAX_CHORD_CHARS, "title": title}
    return rule | ({"pattern": pattern} if pattern else {})


def key_list(key: str, naming: KeyNaming, field: str = "keys", *, required: bool = True) -> JsonField:
    """Keys as a list of names; an optional empty list is omitted."""
    return single(
        key,
        field,
        json_schema.items(_name_rule(naming.pattern, "keys"), int(required), MAX_KEYS),
        lambda names: tuple(naming.read(name) for name in names),
        lambda keys: [naming.write_in_json(name) for name in keys],
        REQUIRED if required else (),
    )


def chord(keys: Sequence[str], naming: KeyNaming, field: str = "keys", *, required: bool = True) -> JsonField:
    """Keys as one text, "ctrl+s", under the first of `keys`; the others are accepted aliases."""
    rule = _name_rule(naming.chord_pattern, "keys joined by +")

    def read(values: Values) -> Fields:
        key = _given_key(values, keys, required=required)
        if key is None:
            return {}
        names = naming.read_chord(values[key])
        if len(names) > MAX_KEYS:
            raise AgentError(f"holds {len(names)} keys; the most is {MAX_KEYS}")
        return {field: names}

    def write(fields: Values) -> dict[str, Any]:
        names = fields[field]
        if len(names) > MAX_KEYS or (required and not names):
            raise AgentError(f"{field} must hold 1 to {MAX_KEYS} keys, not {len(names)}")
        return {keys[0]: naming.write_chord(names)} if names else {}

    also = dict.fromkeys(keys[1:], rule)
    return JsonField({keys[0]: rule}, (field,), read, write, (keys[0],) if required else (), also, bool(also))


def direction(
    keys: Sequence[str], amount: str, *, unit: int = 1, max_amount: int = MAX_SCROLL_NOTCHES, default: int | None = None
) -> JsonField:
    """A scroll as a direction (under the first of `keys`; the others are aliases) and an amount of `unit` per notch.

    `default` makes the amount optional.
    """

    def read(values: Values) -> Fields:
        x, y = DIRECTIONS[values[_given_key(values, keys)]]
        count = notches(values.get(amount, default), unit)
        return {"dx": x * count, "dy": y * count}

    def write(fields: Values) -> dict[str, Any]:
        dx, dy = fields["dx"], fields["dy"]
        if dx and dy:
            raise AgentError("the wheel turns in one direction at a time here")
        return {keys[0]: direction_of(dx, dy), amount: abs(dx or dy) * unit}

    rule = json_schema.one_of(*DIRECTIONS)
    required = (keys[0],) if default is not None else (keys[0], amount)
    offered = {keys[0]: rule, amount: json_schema.integer(0, max_amount)}
    also = dict.fromkeys(keys[1:], rule)
    return JsonField(offered, ("dx", "dy"), read, write, required, also, bool(also))


def wheel(
    dx: str | None, dy: str | None, *, y_sign: int = 1, unit: int = 1, lenient: bool = False, whole: bool = True
) -> JsonField:
    """A scroll as signed amounts of `unit` per notch: right, and down unless `y_sign` is -1. A key of None is absent.

    With `lenient`, one of the two keys is enough when parsing.
    """
    keys = [(key, field, sign) for key, field, sign in ((dx, "dx", 1), (dy, "dy", y_sign)) if key is not None]
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
    """Round an amount to whole notches, at least one in its direction unless it is 0."""
    count = int(abs(amount) / unit + 0.5)
    return (1 if amount > 0 else -1) * max(1, count) if amount else 0
