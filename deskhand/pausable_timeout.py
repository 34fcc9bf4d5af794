"""`asyncio.timeout` that pauses while a task waits for quota, or for something with limits of its own.

`pausable_timeout(seconds)` sets the limit, `pause_timeouts()` is entered by `desktop.remote.quota`, `desktop.pool`,
`tasks.subprocess_call` and `rollout.live_episode`, and `measure_paused()` adds up the time waited for quota.
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
    num_pauses: int = 0
    """Number of pauses now active inside this timeout."""
    remaining_s: float = 0.0


@dataclass(eq=False)
class PausedTime:
    """Seconds waited for quota inside `measure_paused`."""

    paused_s: float = 0.0


_limits: ContextVar[tuple[_Limit, ...]] = ContextVar("limits", default=())
_measured: ContextVar[tuple[PausedTime, ...]] = ContextVar("measured", default=())


@asynccontextmanager
async def pausable_timeout(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """Raise `TimeoutError` if the body runs longer than `seconds`, not counting pauses. None sets no limit."""
    async with asyncio.timeout(seconds) as timeout:
        token = _limits.set((*_limits.get(), _Limit(timeout))) if seconds is not None else None
        try:
            yield timeout
        finally:
            if token is not None:
                _limits.reset(token)


@contextmanager
def measure_paused() -> Iterator[PausedTime]:
    """Measure how long the body waits for quota."""
    paused = PausedTime()
    token = _measured.set((*_measured.get(), paused))
    try:
        yield paused
    finally:
        _measured.reset(token)


@contextmanager
def pause_timeouts(*, measured: bool = True) -> Iterator[None]:
    """Pause every enclosing `pausable_timeout` while the body runs; `measured`: it waits for quota."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    limits = [each for each in _limits.get() if not each.timeout.expired()]
    for each in limits:
        if each.num_pauses == 0:
            when = each.timeout.when()
            each.remaining_s = (when if when is not None else started) - started
            each.timeout.reschedule(None)
        each.num_pauses += 1
    try:
        yield
    finally:
        ended = loop.time()
        for paused in _measured.get() if measured else ():
            paused.paused_s += ended - started
        for each in limits:
            each.num_pauses -= 1
            if each.num_pauses == 0 and not each.timeout.expired():
                each.timeout.reschedule(ended + each.remaining_s)
