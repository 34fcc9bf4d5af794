"""Parsing and validation of JSON request bodies (RFC 8259).

NaN and Infinity, which Python accepts, are rejected: they would pass every range check.
"""

from __future__ import annotations

import json
from typing import Any

from deskhand.server.http_errors import HttpError


def parse_json_body(raw: bytes) -> Any:
    """Return the value. Raises `ValueError`, also for excessive nesting."""
    try:
        return json.loads(raw, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def object_of(raw: bytes, known: set[str]) -> dict[str, Any]:
    """Return the object of a body, {} if it is empty. Raises `HttpError` (400), also for keys that are not in
    `known`."""
    try:
        body = parse_json_body(raw) if raw else {}
    except ValueError as error:
        raise HttpError(400, f"invalid JSON body: {error}") from None
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object")
    if extra := set(body) - known:
        raise HttpError(400, f"unknown keys: {', '.join(sorted(extra))}; known: {', '.join(sorted(known))}")
    return body


def number(value: Any, name: str, minimum: float, maximum: float) -> float:
    """Return a number within limits. Raises `HttpError` (400)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value <= maximum:
        raise HttpError(400, f"{name} must be a number in [{minimum:g}, {maximum:g}], got {str(value)[:40]}")
    return float(value)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
