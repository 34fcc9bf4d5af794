"""JSON request bodies as models: no conversions, unknown keys, NaN or Infinity."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from deskhand.desktop.base import DesktopSpec
from deskhand.errors import ConfigError


class JsonBody(BaseModel):
    """Base class of request bodies."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @classmethod
    def parse(cls, raw: bytes | str) -> Self:
        """Parse a body; an empty one is {}. Raises `ConfigError`, which names the key."""
        try:
            return cls.model_validate_json(raw or b"{}")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"])) or "request body"
            raise ConfigError(f"{key}: {first['msg']}; known keys: {', '.join(cls.model_fields)}") from None


class _Template(JsonBody):
    template: DesktopSpec


def desktop_spec_from_json(changes: dict[str, Any], default: DesktopSpec) -> DesktopSpec:
    """Return `default` with the fields that a client requests. Raises `ConfigError`."""
    return _Template.parse(json.dumps({"template": asdict(default) | changes})).template
