"""What engine and desktops did during a training step. Used by `recipes.training_loop`; start with `StepTimes`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

from deskhand.rollout.scheduler import Scheduler
from deskhand.types import Engine


@runtime_checkable
class HasStats(Protocol):
    """An engine in this process (`engines.hf`) that counts; names that end in `_s` are seconds."""

    @property
    def stats(self) -> Any: ...


class StepTimes:
    """Differences of counters of engine and scheduler between two calls of `metrics`."""

    def __init__(self, engine: Engine, scheduler: Scheduler) -> None:
        self._engine, self._scheduler = engine, scheduler
        self._before = self._counters()

    def _counters(self) -> dict[str, float]:
        now = time.monotonic()
        stats = asdict(self._engine.stats) if isinstance(self._engine, HasStats) else {}
        return {**stats, "now_s": now, "busy_s": self._scheduler.busy_s(now)}

    def metrics(self) -> dict[str, float]:
        """Return the metrics since the last call."""
        now = self._counters()
        since = {name: value - self._before[name] for name, value in now.items()}
        self._before, seconds = now, max(since["now_s"], 1e-9)
        slots_s = seconds * self._scheduler.concurrency
        return {"perf/busy_slots_frac": since["busy_s"] / slots_s, **_engine_metrics(since, seconds)}


def _engine_metrics(since: Mapping[str, float], seconds: float) -> dict[str, float]:
    if "decode_s" not in since:
        return {}
    parts = {name: since[f"{name}_s"] for name in ("vision", "prefill", "decode")}
    counts = {name: since[name] for name in ("decoded_tokens", "prefill_tokens", "reused_tokens", "images_encoded")}
    return {
        **{f"engine/{name}": count for name, count in counts.items()},
        "engine/mean_batch": since["decoded_tokens"] / max(1, since["prefills"] + since["decode_steps"]),
        **{f"time/engine_{name}": part for name, part in parts.items()},
        "perf/engine_busy_frac": sum(parts.values()) / seconds,
        "perf/engine_tokens_per_s": since["decoded_tokens"] / seconds,
    }
