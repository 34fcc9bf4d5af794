"""Time limits of tests. Invariant: they are written for an idle machine of two cores, and are longer on one that is
slower or has other work."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

NOMINAL_S = 0.020
"""What the piece of work below takes on the machine that limits are written for."""
LONGEST = 20.0
"""Limits never grow by more, so that what hangs is found."""


@cache
def slowness() -> float:
    """How many times as long as there the work takes here; the best of a few tries, so that other work counts
    little."""
    return max(1.0, min(_work_s() for _ in range(5)) / NOMINAL_S)


def _work_s() -> float:
    began = time.perf_counter()
    digest = b""
    for _ in range(20_000):
        digest = hashlib.sha256(digest).digest()
    return time.perf_counter() - began


async def is_fast(call: Callable[[], Awaitable[object]], seconds: float, tries: int = 10) -> bool:
    """Whether a call takes less than `seconds` at least once. Other work delays some calls; what waits for a time limit
    does so every time."""
    for _ in range(tries):
        began = time.perf_counter()
        await call()
        if time.perf_counter() - began < limit(seconds):
            return True
    return False


def crowd() -> float:
    """How many processes want each core: at this moment, or over the last minute if that were more."""
    minute, _, _, running, _ = Path("/proc/loadavg").read_text().split()
    return max(1.0, float(minute), float(running.split("/")[0])) / len(os.sched_getaffinity(0))


def limit(seconds: float) -> float:
    """`seconds`, as long as they have to be on this machine with the work that goes on now."""
    return seconds * min(LONGEST, slowness() * max(1.0, crowd()))
