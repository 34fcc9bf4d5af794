"""What the requests of the viewer have in common: JSON replies, pages of rows, numbers. Used by `viewer.app` and its
views."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from deskhand.errors import ConfigError, DeskhandError

PAGE_ROWS = 50
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
FOREVER = {"cache-control": "private, max-age=31536000, immutable"}
"""Headers of screenshots, which never change: their name is the hash of their pixels."""


class NotFound(DeskhandError):
    """What a URL names is not in the run."""


def json_reply(content: Any, status: int = 200) -> Response:
    """Return JSON; infinity and NaN, which it lacks, become null."""
    return Response(json.dumps(_finite(content), allow_nan=False), status, media_type="application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page_of(given: Mapping[str, str]) -> tuple[int, int]:
    """Return offset and limit of a query. Raises `ConfigError`."""
    offset = number_of(given.get("offset", "0"), "offset", 0, 10**9)
    return offset, number_of(given.get("limit", str(PAGE_ROWS)), "limit", 1, 500)


def number_of(text: str, name: str, low: int, high: int) -> int:
    """Return a number of a query, from `low` to `high`. Raises `ConfigError`."""
    if not re.fullmatch(r"\d{1,10}", text) or not low <= int(text) <= high:
        raise ConfigError(f"{name}: must be a number from {low} to {high}, got {text[:50]}")
    return int(text)
