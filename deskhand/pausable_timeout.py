"""Deadlines that stand still while work is parked. Invariant: the time that something waits for a quota counts against no deadline.

`limit` is used as `asyncio.timeout` is; `standing` is entered by whoever waits for a quota (`desktop.remote.parking`). A `Meter`
adds up how long that was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(eq=False)
class _Limit:
    timeout: asyncio.Timeout
    standing: int = 0
    """How many wait for a quota inside it now."""
    left_s: float = 0.0


@dataclass(eq=False)
class PausedTime:
    """Seconds that were parked inside `metered`."""

    parked_s: float = 0.0


_limits: ContextVar[tuple[_Limit, ...]] = ContextVar("limits", default=())
_meters: ContextVar[tuple[PausedTime, ...]] = ContextVar("meters", default=())


@asynccontextmanager
async def pausable_timeout(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """Raises `TimeoutError` when what is inside takes longer, parked time left out; None is no limit."""
    async with asyncio.timeout(seconds) as timeout:
        token = _limits.set((*_limits.get(), _Limit(timeout))) if seconds is not None else None
        try:
            yield timeout
        finally:
            if token is not None:
                _limits.reset(token)


@contextmanager
def measure_paused() -> Iterator[PausedTime]:
    """Adds up what is parked inside."""
    meter = PausedTime()
    token = _meters.set((*_meters.get(), meter))
    try:
        yield meter
    finally:
        _meters.reset(token)


@contextmanager
def pause_timeouts() -> Iterator[None]:
    """The deadlines around this place stand still until it is left."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    limits = [each for each in _limits.get() if not each.timeout.expired()]
    for each in limits:
        if each.standing == 0:
            when = each.timeout.when()
            each.left_s = (when if when is not None else began) - began
            each.timeout.reschedule(None)
        each.standing += 1
    try:
        yield
    finally:
        ended = loop.time()
        for meter in _meters.get():
            meter.parked_s += ended - began
        for each in limits:
            each.standing -= 1
            if each.standing == 0 and not each.timeout.expired():
                each.timeout.reschedule(ended + each.left_s)
