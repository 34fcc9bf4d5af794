"""Bodies of requests that are JSON. Invariant: what is read is JSON as RFC 8259 has it; a NaN, which Python takes for a number too,
compares with nothing, so no bound would hold for it.
"""

from __future__ import annotations

import json
from typing import Any


def parse_json_body(raw: bytes) -> Any:
    """The value. Raises `ValueError`, also for what is nested too deeply."""
    try:
        return json.loads(raw, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
