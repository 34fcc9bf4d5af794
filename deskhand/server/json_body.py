"""JSON request bodies as models: no conversions, unknown keys, NaN or Infinity."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from deskhand.desktop.base import DesktopSpec
from deskhand.errors import ConfigError


class JsonBody(BaseModel):
    """Base class of request bodies."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @classmethod
    def parse(cls, raw: bytes | str) -> Self:
        """Parse a body; an empty one is {}. Raises `ConfigError`, which names the key."""
        raw = raw or b"{}"
        try:
            from_json(raw, allow_inf_nan=False)  # also in values of type Any: NaN would pass every range check
            return cls.model_validate_json(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"])) or "request body"
            known = f"; known keys: {', '.join(keys)}" if (keys := cls._keys_beside(first["loc"])) else ""
            raise ConfigError(f"{key}: {first['msg']}{known}") from None
        except ValueError as error:
            raise ConfigError(f"request body: invalid JSON: {error}") from None

    @classmethod
    def _keys_beside(cls, path: tuple[int | str, ...]) -> list[str]:
        """Return the keys of the object that contains `path`; none inside lists and free-form objects."""
        if len(path) <= 1:
            return list(cls.model_fields)
        part = cls.model_fields[str(path[0])].annotation
        return [item.name for item in fields(part)] if is_dataclass(part) and len(path) == 2 else []


class _SpecBody(JsonBody):
    spec: DesktopSpec


def desktop_spec_from_json(changes: dict[str, Any], default: DesktopSpec) -> DesktopSpec:
    """Return `default` with the fields that a client requests. Raises `ConfigError`."""
    return _SpecBody.parse(json.dumps({"spec": asdict(default) | changes})).spec
