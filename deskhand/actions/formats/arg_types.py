"""Kinds of arguments: how a literal of a call is read as a field of an op, and how that field is written.

Invariant: `read(name, ...)` of what `write` wrote is the same value, and a literal of another type is an `AgentError` that names
the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deskhand.actions.formats.limits import check_key, check_number, check_text, truncate_repr
from deskhand.actions.formats.quoting import number, quoted
from deskhand.errors import AgentError


@dataclass(frozen=True, slots=True)
class ArgType:
    """How one argument is read and written; `read` gets the argument's name for its errors."""

    read: Callable[[str, Any], Any]
    write: Callable[[Any], str]


def whole(name: str, value: Any) -> int:
    """A number without a fraction. Raises `AgentError`."""
    found = check_number(name, value)
    if not float(found).is_integer():
        raise AgentError(f"{name} must be a whole number, not {found:g}")
    return int(found)


def choice(names: Mapping[Any, Any], mark: str = "'") -> ArgType:
    """One of several literals, each with its field's value; the first name of a value is the one that is written."""
    written: dict[Any, str] = {}
    for name, value in names.items():
        written.setdefault(value, name)

    def read(name: str, value: Any) -> Any:
        if isinstance(value, (bool, tuple)) or value not in names:
            raise AgentError(f"{name} must be one of {', '.join(written.values())}, not {truncate_repr(value)}")
        return names[value]

    def write(value: Any) -> str:
        if value not in written:
            raise AgentError(f"{truncate_repr(value)} cannot be said here; what can: {', '.join(written.values())}")
        return quoted(written[value], mark)

    return ArgType(read, write)


_SIGNS = {"+": "plus", "-": "minus"}
"""How the keys are named that stand between keys."""


def keys_joined(separators: str, mark: str = "'") -> ArgType:
    """A chord in one text: keys with one of `separators` between them, the first that the text holds; the first is written."""

    def read(name: str, value: Any) -> tuple[str, ...]:
        text = check_text(name, value)
        separator = next((sign for sign in separators if len(text) > 1 and sign in text), None)
        parts = text.split(separator if separator != " " else None) if separator else [text]
        if not all(parts) or not parts or any(part in separators for part in parts[:-1]):
            raise AgentError(f"{name} must name keys with {separators[0]!r} between them, not {truncate_repr(value)}")
        return tuple(check_key(part.strip()) for part in parts)

    def write(keys: Any) -> str:
        names = [check_key(key) for key in keys]
        if len(names) > 1:
            names = [_SIGNS[name] if name in separators else name for name in names]
        return quoted(separators[0].join(names), mark)

    return ArgType(read, write)


def _pace(name: str, value: Any) -> None:
    if not isinstance(value, bool) and check_number(name, value) < 0:
        raise AgentError(f"{name} must not be negative")


NUMBER = ArgType(check_number, number)
WHOLE = ArgType(whole, number)
WHOLE_UP = ArgType(lambda name, value: -whole(name, value), lambda value: number(-value))
"""Notches whose positive is up: the other way round from `Scroll.dy`."""
TEXT = ArgType(check_text, quoted)
DOUBLE_QUOTED = ArgType(check_text, lambda value: quoted(value, '"'))
PACE = ArgType(_pace, number)
"""How fast something happens, a number of seconds or a truth value: it has no field, for the pace is the desktop's business."""
