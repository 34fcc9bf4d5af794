"""Argument types of calls: conversion between Python literals and op fields.

`read(name, ...)` reverses `write`; a literal of another type raises `AgentError` naming the argument. Written strings
contain no sequence that could end a code fence or a reasoning block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deskhand.actions.formats.limits import check_key, check_number, check_text, truncate_repr
from deskhand.actions.keys import PUNCTUATION
from deskhand.actions.pointer_merge import DIRECTIONS, direction_of
from deskhand.errors import AgentError


def quoted(text: str, mark: str = "'") -> str:
    """Return `text` as a Python string literal. Raises `AgentError` if it is not Unicode text.

    Backticks and the < of `<think>` are escaped, because they would change how the reply is split.
    """
    body = json.dumps(check_text("text", text), ensure_ascii=False)[1:-1]
    for unsafe in ("`", "\x7f"):
        body = body.replace(unsafe, f"\\x{ord(unsafe):02x}")
    body = re.sub(r"<(?=/?think)", r"\\x3c", body)
    if mark == "'":
        body = body.replace('\\"', '"').replace("'", "\\'")
    return mark + body + mark


def number(value: float) -> str:
    """Format a number so that it parses to the same value."""
    return str(int(value)) if float(value).is_integer() else repr(value)


@dataclass(frozen=True, slots=True)
class ArgType:
    """Conversion of one argument; `read` receives the argument name for its errors."""

    read: Callable[[str, Any], Any]
    write: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a call; `named` parameters are written as name=value."""

    name: str
    kind: ArgType
    field: str = ""
    """Op field; several, separated by commas, if the type reads a tuple."""
    required: bool = False
    named: bool = True
    variadic: bool = False
    """Takes all remaining positional arguments as a tuple."""
    aliases: tuple[str, ...] = ()
    """Other accepted names."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.field.split(",")) if self.field else ()


def whole(name: str, value: Any) -> int:
    """Return a number without a fraction. Raises `AgentError`."""
    found = check_number(name, value)
    if not float(found).is_integer():
        raise AgentError(f"{name} must be a whole number, not {found:g}")
    return int(found)


def choice(names: Mapping[Any, Any], mark: str = "'") -> ArgType:
    """One of several literals, each with a field value; the first name of a value is written."""
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
    """A scroll direction of a fixed number of notches, for the fields "dx,dy"."""
    ways = choice({name: name for name in names}, mark)

    def read(name: str, value: Any) -> tuple[int, int]:
        across, down = DIRECTIONS[ways.read(name, value)]
        return across * notches, down * notches

    return ArgType(read, lambda turn: ways.write(direction_of(*turn)))


def keys_joined(separators: str, mark: str = "'") -> ArgType:
    """A chord in one text, split at the first of `separators` that occurs; the first separator is written."""

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
            names = [PUNCTUATION[name] if name in separators else name for name in names]
        return quoted(separators[0].join(names), mark)

    return ArgType(read, write)


def _check_duration(name: str, value: Any) -> None:
    if not isinstance(value, bool) and check_number(name, value) < 0:
        raise AgentError(f"{name} must not be negative")


NUMBER = ArgType(check_number, number)
INTEGER = ArgType(whole, number)
INTEGER_UP = ArgType(lambda name, value: -whole(name, value), lambda value: number(-value))
"""Notches with positive up, the opposite of `Scroll.dy`."""
TEXT = ArgType(check_text, quoted)
DOUBLE_QUOTED = ArgType(check_text, lambda value: quoted(value, '"'))
DURATION_VALUE = ArgType(_check_duration, number)
"""A number of seconds or a boolean, validated and ignored: the desktop controls the timing."""


def point_parameters(required: bool = False) -> tuple[Parameter, Parameter]:
    return Parameter("x", NUMBER, "x", required), Parameter("y", NUMBER, "y", required)
