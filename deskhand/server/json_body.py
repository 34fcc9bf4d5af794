"""Bodies of requests that are JSON. Invariant: what is read is JSON as RFC 8259 has it; a NaN, which Python takes for a number too,
compares with nothing, so no bound would hold for it.
"""

from __future__ import annotations

import json
from typing import Any

from deskhand.server.http_errors import HttpError


def parse_json_body(raw: bytes) -> Any:
    """The value. Raises `ValueError`, also for what is nested too deeply."""
    try:
        return json.loads(raw, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def object_of(raw: bytes, known: set[str]) -> dict[str, Any]:
    """The object of a body, {} of an empty one. Raises `Refused` (400), also for keys beyond those that are known."""
    try:
        body = parse_json_body(raw) if raw else {}
    except ValueError as error:
        raise HttpError(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object")
    if extra := set(body) - known:
        raise HttpError(400, f"unknown keys: {', '.join(sorted(extra))}; known: {', '.join(sorted(known))}")
    return body


def number(value: Any, name: str, least: float, most: float) -> float:
    """A number within bounds. Raises `Refused` (400)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise HttpError(400, f"{name} must be a number from {least:g} to {most:g}")
    return float(value)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
