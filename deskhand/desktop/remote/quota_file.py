"""File of the quota state of a run: what gates learned, and what waits now. Written by `quota`, read after a restart.

The file is a memory only: a damaged file, or wrong entry, costs one refused request, so it is dropped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

log = structlog.get_logger()
QUOTA_FILE = "quota.json"
"""Name of the file in a run directory."""
_MAX_TIME = 2.0**33
_Finite = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False, strict=True)]
_Time = Annotated[float, Field(ge=0, le=_MAX_TIME, allow_inf_nan=False, strict=True)]
_Text = Annotated[str, Field(strict=True)]


class GateState(BaseModel):
    """What a gate learned. `closed_until` is a Unix time."""

    model_config = ConfigDict(extra="ignore")
    max_held: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False, strict=True)] | None = None
    reason: _Text = ""
    refusals: Annotated[int, Field(ge=0, strict=True)] = 0
    closed_until: _Time | None = None


class GateSnapshot(BaseModel):
    """What waited at a gate; a part of `QuotaGate.snapshot`."""

    endpoint: _Text
    waiting: Annotated[int, Field(ge=0, strict=True)]
    reason: _Text
    since_s: _Finite
    next_try_s: _Finite


class _Snapshot(BaseModel):
    written: _Time
    gates: list[GateSnapshot]


_WAITS = TypeAdapter(dict[str, _Finite])


class QuotaState(BaseModel):
    """The valid entries of a file."""

    gates: dict[str, GateState] = {}
    """By the name of the gate."""
    wait_s: dict[str, float] = {}
    """Seconds waited, by reason."""


def read_state(file: Path | None) -> QuotaState:
    """Return the valid entries of the file; none if it is missing or unreadable."""
    found = _read(file)
    state = QuotaState()
    for key, value in found.items():
        try:
            if key == "wait_s":
                state.wait_s = _WAITS.validate_python(value)
            elif key != "now":
                state.gates[key] = GateState.model_validate(value)
        except ValidationError:
            log.warning("quota.entry_dropped", file=str(file), entry=key)
    return state


def saved_summary(file: Path) -> str:
    """Return what another process's file reports as waiting, and when it was written; "" if nothing is."""
    try:
        now = _Snapshot.model_validate(_read(file).get("now"))
    except ValidationError:
        return ""
    found = format_summary([gate.model_dump() for gate in now.gates])
    return f"{found}, as of {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(now.written))}" if found else ""


def format_summary(gates: Sequence[dict[str, Any]]) -> str:
    """Return one line for people about snapshots of gates, "" if nothing waits."""
    parts = [
        f"{each['waiting']} waiting at {each['endpoint']} ({each['reason'] or 'limit of concurrent desktops'}, "
        f"{each['since_s']:.0f} s; next try in {each['next_try_s']:.0f} s)"
        for each in gates
        if each["waiting"]
    ]
    return "; ".join(parts)


def _read(file: Path | None) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file is not None else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
