"""How an action is written as a JSON object. Invariant: what a form writes for an op, it reads back as that op, and it has a
rule for every key that it reads; all of it follows from the form's parts.

A form joins an action's name with an op: `left_click` is a `Click` with button left (what the name itself says) and a part that
joins the key `coordinate` with the field `point`. A part is made once for a view, since the bounds of its coordinates are those of
the image that the model sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from deskhand.actions.formats import json_schema
from deskhand.actions.formats.json_schema import Rule, strip_description
from deskhand.actions.formats.limits import MAX_KEYS, MAX_PATH, MAX_SCROLL_NOTCHES
from deskhand.actions.key_names import KeyNaming
from deskhand.actions.ops import Point, Space, in_space
from deskhand.actions.pointer_merge import DIRECTIONS, direction_of
from deskhand.errors import AgentError

Values = Mapping[str, Any]
"""JSON values by key."""
Fields = dict[str, Any]
"""Values of an op by field."""

LONGEST_CHORD = 200
CLICKS: dict[str, tuple[dict[str, Any], str]] = {
    "left_click": ({"button": "left", "count": 1}, "click the left button"),
    "right_click": ({"button": "right", "count": 1}, "click the right button"),
    "middle_click": ({"button": "middle", "count": 1}, "click the middle button"),
    "double_click": ({"button": "left", "count": 2}, "click the left button twice"),
    "triple_click": ({"button": "left", "count": 3}, "click the left button three times"),
}
"""What several vendors call clicks: the fields that a name says, and what it does."""
REQUIRED: Any = object()
"""In place of a default: the key may not be left out."""


@dataclass(frozen=True)
class JsonField:
    """`read` gets the keys that were given and returns the fields they say; `write` gets all fields and returns keys to write.

    Both raise `AgentError` for what cannot be said. Several keys of which none is required are given together, or not at all.
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


class JsonAction:
    """One way to write an action: `parts` and what its name itself says of the fields (`fixed`).

    `op` is the example that the prompt shows, or a class of ops; without it the form is only read. With `reads` the ops are made of
    the fields by that. `sample` are the keys that the prompt shows where there is no example; a form with neither is not offered.
    """

    def __init__(
        self,
        name: str,
        op: Any = None,
        about: str = "",
        *parts: JsonField,
        reads: Callable[[Fields], list[Any]] | None = None,
        sample: Values | None = None,
        **fixed: Any,
    ) -> None:
        self.name, self.about, self.parts, self.fixed = name, about, parts, fixed
        self.cls: Any = op if op is None or isinstance(op, type) else type(op)
        self.example = None if isinstance(op, type) else op
        self._reads = reads or (lambda said: [self.cls(**said)])
        self.offered = self.example is not None or sample is not None
        self.keys = {key: rule for part in parts for key, rule in part.keys.items()}
        """The rules of the keys that are offered, in the order of writing."""
        self._required = tuple(key for part in parts for key in part.required)
        self._needed = tuple(key for part in parts if not part.lenient for key in part.required)
        self._sample = dict(sample or {})
        self._known = self.keys | {key: rule for part in parts for key, rule in part.also.items()}

    @cached_property
    def shown(self) -> dict[str, Any]:
        """The keys that the prompt shows."""
        return self._sample if self.example is None else self.write(self.example)

    def read(self, values: Values) -> list[Any]:
        """The ops (or `DragTo`) that are said. Raises `AgentError`."""
        json_schema.check_keys(self.name, values, self._known, self._needed)
        said: Fields = dict(self.fixed)
        for part in self.parts:
            try:
                said |= part.read(values)
            except AgentError as error:
                raise AgentError(f"{self.name}: {error}") from None
        return self._reads(said)

    def write(self, op: Any) -> dict[str, Any]:
        """The keys that say `op`. Raises `AgentError` when this form cannot."""
        covered = {name for part in self.parts for name in part.fields}
        values: dict[str, Any] = {item.name: getattr(op, item.name) for item in fields(op)}
        for item in fields(op):
            value = values[item.name]
            if item.name in self.fixed:
                if value != self.fixed[item.name]:
                    raise AgentError(f"{item.name} cannot be {value!r}")
            elif item.name not in covered and (item.default is MISSING or value != item.default):
                raise AgentError(f"it has no {item.name}")
        written = {key: value for part in self.parts for key, value in part.write(values).items()}
        json_schema.check_keys(self.name, written, self.keys, self._required)
        return written

    def schema(self) -> dict[str, Any]:
        """JSON schema of the keys."""
        made: dict[str, Any] = {
            "type": "object",
            "properties": dict(self.keys),
            "required": list(self._required),
            "additionalProperties": False,
        }
        depending = {
            key: [other for other in part.keys if other != key]
            for part in self.parts
            if len(part.keys) > 1 and not part.required
            for key in part.keys
        }
        return made | ({"dependentRequired": depending} if depending else {})


def keyed(
    key: str, field: str, rule: Rule, read: Callable[[Any], Any], write: Callable[[Any], Any], default: Any = REQUIRED
) -> JsonField:
    """One key for one field. With a default it may be left out, and it is left out in writing when the field is that."""

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
    """A text as it is."""
    return keyed(key, field, json_schema.text(least), _same, _same)


def numeral(key: str, field: str, rule: Rule, default: Any = REQUIRED) -> JsonField:
    """A number."""
    return keyed(key, field, rule, strip_description, strip_description, default)


def choice(key: str, field: str, names: Mapping[str, Any], default: Any = REQUIRED) -> JsonField:
    """One of several names, each with its field's value."""
    name_of = {value: name for name, value in names.items()}

    def write(value: Any) -> str:
        if value not in name_of:
            raise AgentError(f"{field} cannot be {value!r}; it is one of {', '.join(map(str, name_of))}")
        return name_of[value]

    return keyed(key, field, json_schema.one_of(*names), names.__getitem__, write, default)


def constant(field: str, value: Any = None) -> JsonField:
    """A field that is not written; what is read is `value`, or nothing when that is None."""
    return JsonField({}, (field,), lambda values: {} if value is None else {field: value}, lambda fields: {})


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


def _numbers(point: Point | None, space: Space) -> list[Any]:
    if point is None:
        raise AgentError("it needs a point")
    moved = in_space(point, space)
    return [strip_description(moved.x), strip_description(moved.y)]


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
        if fields[field] is None and not required:
            return {}
        return dict(zip(keys, _numbers(fields[field], space), strict=True))

    return JsonField(
        dict(zip(keys, coordinate(space, whole=whole), strict=True)), (field,), read, write, keys if required else ()
    )


def pair(key: str, space: Space, field: str = "point", *, required: bool = False) -> JsonField:
    """A point as a list of two numbers."""
    rule, default = json_schema.fixed_items(*coordinate(space)), REQUIRED if required else None
    return keyed(
        key, field, rule, lambda value: _point(value[0], value[1], space), lambda point: _numbers(point, space), default
    )


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

    def read(items: list[Any]) -> tuple[Point, ...]:
        return tuple(
            _point(item["x"], item["y"], space) if named else _point(item[0], item[1], space) for item in items
        )

    def write(points: tuple[Point, ...]) -> list[Any]:
        numbers = [_numbers(point, space) for point in points]
        return [dict(zip("xy", both, strict=True)) for both in numbers] if named else numbers

    return keyed(key, "path", rule, read, write)


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


def key_name(key: str, spelling: KeyNaming) -> JsonField:
    """One key, of an op with the field `key`."""
    return keyed(key, "key", _name_rule(spelling.pattern, "a key"), spelling.read, spelling.write)


def _name_rule(pattern: str, title: str) -> Rule:
    rule = {"type": "string", "minLength": 1, "maxLength": LONGEST_CHORD, "title": title}
    return rule | ({"pattern": pattern} if pattern else {})


def key_list(key: str, spelling: KeyNaming, field: str = "keys", *, required: bool = True) -> JsonField:
    """Keys as a list of names; not required, none is left out."""
    return keyed(
        key,
        field,
        json_schema.items(_name_rule(spelling.pattern, "keys"), int(required), MAX_KEYS),
        lambda names: tuple(spelling.read(name) for name in names),
        lambda keys: [spelling.write(name) for name in keys],
        REQUIRED if required else (),
    )


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
        x, y = DIRECTIONS[values[given[0]]]
        count = notches(values.get(amount, default), unit)
        return {"dx": x * count, "dy": y * count}

    def write(fields: Values) -> dict[str, Any]:
        dx, dy = fields["dx"], fields["dy"]
        if dx and dy:
            raise AgentError("the wheel turns in one direction at a time here")
        return {keys[0]: direction_of(dx, dy), amount: abs(dx or dy) * unit}

    rule = json_schema.one_of(*DIRECTIONS)
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
