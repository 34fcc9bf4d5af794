"""Action formats by name. Each is imported when it is first asked for."""

from __future__ import annotations

import inspect

from deskhand import registry
from deskhand.actions.formats.base import ActionFormat


def available_formats() -> tuple[str, ...]:
    """Names of all action formats."""
    return registry.names("action_format")


def get(name: str) -> ActionFormat:
    """The action format that a name or an import path stands for. Raises `ConfigError`."""
    found = registry.resolve("action_format", name)
    return found() if inspect.isclass(found) else found
