"""Seconds by phase of a training step. Used by `trainer.trainer` and `recipes.training_loop`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseTimer:
    """Sums the time spent in phases that do not overlap; `since` is the time of the start or the last `lap`."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.since = time.perf_counter()

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the time in the body to `phase`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started

    def lap(self) -> dict[str, float]:
        """Return the seconds by phase since the last lap, and in all as "step"; then reset them."""
        now = time.perf_counter()
        found = {**self.seconds, "step": now - self.since}
        self.seconds, self.since = defaultdict(float), now
        return found
