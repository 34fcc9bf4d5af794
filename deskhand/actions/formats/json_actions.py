"""One way to write an action as a JSON object. Invariant: what a form writes for an op, it reads back as that op; both follow from
its parts.

`left_click` is a `Click` with button left (what the name itself says) and a part that joins the key `coordinate` with the field
`point`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from deskhand.actions.formats import json_schema
from deskhand.actions.formats.json_fields import Fields, JsonField, Values
from deskhand.actions.formats.json_schema import Rule
from deskhand.actions.ops import Op
from deskhand.actions.pointer_merge import DragTo
from deskhand.errors import AgentError


@dataclass(frozen=True)
class JsonAction:
    """One way to write an action. With `reads` it makes its ops of the parts' fields by that; without `cls` it is only read."""

    name: str
    cls: type[Any] | None
    parts: tuple[JsonField, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the name itself says."""
    about: str = ""
    example: Op | DragTo | None = None
    """Shown in the prompt."""
    reads: Callable[[Fields], list[Any]] | None = None
    sample: Values | None = None
    """Shown in the prompt where there is no example; a form with neither is read and not offered."""

    @property
    def offered(self) -> bool:
        return self.example is not None or self.sample is not None

    @cached_property
    def keys(self) -> dict[str, Rule]:
        """The rules of the keys that are offered, in the order of writing."""
        return {key: rule for part in self.parts for key, rule in part.keys.items()}

    @cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(key for part in self.parts for key in part.required)

    @cached_property
    def _known(self) -> dict[str, Rule]:
        return self.keys | {key: rule for part in self.parts for key, rule in part.also.items()}

    @cached_property
    def _needed(self) -> tuple[str, ...]:
        return tuple(key for part in self.parts if not part.lenient for key in part.required)

    def read(self, values: Values) -> list[Any]:
        """The ops (or `DragTo`) that are said. Raises `AgentError`."""
        json_schema.check_keys(self.name, values, self._known, self._needed)
        said: Fields = dict(self.fixed)
        for part in self.parts:
            try:
                said |= part.read(values)
            except AgentError as error:
                raise AgentError(f"{self.name}: {error}") from None
        if self.reads is not None:
            return self.reads(said)
        assert self.cls is not None
        return [self.cls(**said)]

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
        json_schema.check_keys(self.name, written, self.keys, self.required)
        return written

    def schema(self) -> dict[str, Any]:
        """JSON schema of the keys."""
        made: dict[str, Any] = {
            "type": "object",
            "properties": dict(self.keys),
            "required": list(self.required),
            "additionalProperties": False,
        }
        depending = {
            key: [other for other in part.keys if other != key]
            for part in self.parts
            if part.together and not part.required
            for key in part.keys
        }
        return made | ({"dependentRequired": depending} if depending else {})
