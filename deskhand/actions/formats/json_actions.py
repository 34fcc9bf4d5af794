"""`JsonAction`: how one named action is written as a JSON object.

It joins an action name with an op: `left_click` is a `Click` with button left (a fixed field) and a `JsonField` that
maps the key `coordinate` to the field `point`. JSON actions are built per view, because the bounds of coordinates
depend on the image size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cached_property
from typing import Any

from deskhand.actions.formats import json_schema
from deskhand.actions.formats.json_fields import Fields, JsonField, Values
from deskhand.errors import AgentError

CLICKS: dict[str, tuple[dict[str, Any], str]] = {
    "left_click": ({"button": "left", "count": 1}, "click the left button"),
    "right_click": ({"button": "right", "count": 1}, "click the right button"),
    "middle_click": ({"button": "middle", "count": 1}, "click the middle button"),
    "double_click": ({"button": "left", "count": 2}, "click the left button twice"),
    "triple_click": ({"button": "left", "count": 3}, "click the left button three times"),
}
"""Click names shared by several vendors, with their fixed fields and prompt text."""


class JsonAction:
    """One action: its name, the JSON fields it takes, and the op fields that the name implies (`fixed`).

    `op` is the example shown in the prompt, or an op class; without it the action is only parsed. `make_ops` builds the
    ops if an action is not a single op. `sample` is shown in the prompt instead of an example; with neither, the prompt
    omits the action.
    """

    def __init__(
        self,
        name: str,
        op: Any = None,
        about: str = "",
        *parts: JsonField,
        make_ops: Callable[[Fields], list[Any]] | None = None,
        sample: Values | None = None,
        **fixed: Any,
    ) -> None:
        self.name, self.about, self.parts, self.fixed = name, about, parts, fixed
        self.cls: Any = op if op is None or isinstance(op, type) else type(op)
        self.example = None if isinstance(op, type) else op
        self._make_ops = make_ops or (lambda op_fields: [self.cls(**op_fields)])
        self.offered = self.example is not None or sample is not None
        self.keys = {key: rule for part in parts for key, rule in part.keys.items()}
        """Schema rules of the keys in the prompt, in writing order."""
        self._required = tuple(key for part in parts for key in part.required)
        self._required_to_parse = tuple(key for part in parts if not part.lenient for key in part.required)
        self._sample = dict(sample or {})
        self._rules = self.keys | {key: rule for part in parts for key, rule in part.also.items()}

    @cached_property
    def shown(self) -> dict[str, Any]:
        """Keys and values shown in the prompt."""
        return self._sample if self.example is None else self.write(self.example)

    def read(self, values: Values) -> list[Any]:
        """Return the ops (or `DragTo`) of an action. Raises `AgentError` if it is invalid."""
        json_schema.check_keys(self.name, values, self._rules, self._required_to_parse)
        op_fields: Fields = dict(self.fixed)
        for part in self.parts:
            try:
                op_fields |= part.read(values)
            except AgentError as error:
                raise AgentError(f"{self.name}: {error}") from None
        return self._make_ops(op_fields)

    def write(self, op: Any) -> dict[str, Any]:
        """Return the keys for `op`. Raises `AgentError` if this action cannot express it."""
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
        """Return the JSON schema of the keys."""
        schema: dict[str, Any] = {
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
        return schema | ({"dependentRequired": depending} if depending else {})
