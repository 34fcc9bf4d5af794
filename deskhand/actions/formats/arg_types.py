"""Arguments of calls: how a literal is read as a field of an op, and how that field is written.

Invariant: `read(name, ...)` of what `write` wrote is the same value, and a literal of another type is an `AgentError` that names
the argument. Every text reads back as itself from a Python literal, and none of its characters can end a code fence or a block of
reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deskhand.actions.formats.limits import check_key, check_number, check_text, truncate_repr
from deskhand.actions.pointer_merge import DIRECTIONS, direction_of
from deskhand.errors import AgentError


def quoted(text: str, mark: str = "'") -> str:
    """`text` as a Python literal between `mark`s. Raises `AgentError` for what is not Unicode text.

    A back-tick and the < of a `<think>` are escaped: they would mean something to whoever looks for code in a reply.
    """
    body = json.dumps(check_text("text", text), ensure_ascii=False)[1:-1]
    body = (
        body.replace("`", "\\x60")
        .replace("<think", "\\x3cthink")
        .replace("</think", "\\x3c/think")
        .replace("\x7f", "\\x7f")
    )
    if mark == "'":
        body = body.replace('\\"', '"').replace("'", "\\'")
    return mark + body + mark


def number(value: float) -> str:
    """A number that reads back as itself; without a fraction where it has none."""
    return str(int(value)) if float(value).is_integer() else repr(value)


@dataclass(frozen=True, slots=True)
class ArgType:
    """How one argument is read and written; `read` gets the argument's name for its errors."""

    read: Callable[[str, Any], Any]
    write: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a call. `named`: it is written as name=value."""

    name: str
    kind: ArgType
    field: str = ""
    """The op's field; several with commas between them for a kind that reads a tuple of them."""
    required: bool = False
    named: bool = True
    many: bool = False
    """It takes all positional arguments that are left; it is read from the tuple of them."""
    aliases: tuple[str, ...] = ()
    """Other names that it is read by."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.field.split(",")) if self.field else ()


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


def direction(names: Sequence[str], notches: int, mark: str = "'") -> ArgType:
    """The wheel by a direction of `names`, always the same number of notches: the fields "dx,dy"."""
    ways = choice({name: name for name in names}, mark)

    def read(name: str, value: Any) -> tuple[int, int]:
        across, down = DIRECTIONS[ways.read(name, value)]
        return across * notches, down * notches

    return ArgType(read, lambda turn: ways.write(direction_of(*turn)))


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


def point_parameters(required: bool = False) -> tuple[Parameter, Parameter]:
    return Parameter("x", NUMBER, "x", required), Parameter("y", NUMBER, "y", required)
