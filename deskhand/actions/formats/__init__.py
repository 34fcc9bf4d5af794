"""Action formats by name. Each is imported when it is first asked for."""

from __future__ import annotations

import inspect
from typing import Any, cast

from deskhand import registry
from deskhand.actions.formats.base import ActionFormat


def available_formats() -> tuple[str, ...]:
    """Names of all action formats."""
    return registry.names("action_format")


def action_format(value: Any) -> Any:
    """Look up an action format by its name or import path; as a decorator, register a class by its `name`.

    Examples:
        >>> qwen = action_format("qwen3_vl")
    """
    return get(value) if isinstance(value, str) else registry.register("action_format", value.name, value)


def get(name: str) -> ActionFormat:
    """The action format that a name or an import path stands for. Raises `ConfigError`."""
    found = registry.resolve("action_format", name)
    return cast(ActionFormat, found() if inspect.isclass(found) else found)
