"""Many episodes at once. Invariant: an episode waits for nobody but its own desktop and its own model calls; there is no common
step.

One coroutine per place runs episode after episode. `source` says what is next, or that there is nothing now; `changed` wakes those
that wait. A stretch of nothing but outages ends the run instead of going on for ever.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from deskhand.errors import InfrastructureError
from deskhand.rollout.episode import errored_result
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.tasks.outcome import Errored

RATE_WINDOW_S = 60.0


@contextmanager
def frozen_gc() -> Iterator[None]:
    """Collect garbage now, and let collections inside pass over what is alive: enter it when everything is loaded.

    A full collection in a process that holds torch and transformers stops the event loop for a fifth of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class EpisodeSource(Protocol):
    """Where episodes come from and results go."""

    async def next(self) -> EpisodeRequest | None:
        """The next episode, or None when there is nothing to do now."""
        ...

    async def on_result(self, result: EpisodeResult) -> None:
        """Take a result. It is called once for every ticket, also for cancelled ones."""
        ...

    @property
    def exhausted(self) -> bool:
        """True when no ticket will come any more."""
        ...


class Scheduler:
    """Runs `source` with at most `concurrency` episodes at a time.

    `failures` is how many episodes in a row may end in an outage of the infrastructure before `run` raises `InfrastructureError`.
    `parked_s` is how long episodes were parked so far, summed over them; no rate is over that time.
    """

    def __init__(
        self,
        source: EpisodeSource,
        run_episode: Callable[[EpisodeRequest], Awaitable[EpisodeResult]],
        concurrency: int,
        *,
        failures: int | None = None,
        parked_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.source = source
        self.concurrency = concurrency
        self._run_episode = run_episode
        self._failures_allowed = failures if failures is not None else max(8, 3 * concurrency)
        self._failures = 0
        self._news = asyncio.Event()
        self._ended: deque[tuple[float, float]] = deque()
        """When episodes ended, and what was parked until then."""
        self._parked_s = parked_s
        self._parked_before = (time.monotonic(), parked_s())
        self._began = time.monotonic()
        self.episodes_ended = 0

    async def run(self) -> None:
        """Until the source is exhausted. Cancelling it cancels every episode and waits for their clean-up.

        Raises what the source or the clean-up of an episode raises, and `InfrastructureError` after too many outages in a row.
        """
        self._began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as places:
                for _ in range(self.concurrency):
                    places.create_task(self._place())
        except BaseExceptionGroup as group:
            raise _first(group) from None

    def wake(self) -> None:
        """Something may have become possible: wake every place that waits."""
        self._news.set()
        self._news = asyncio.Event()

    @property
    def episodes_per_minute(self) -> float:
        """Over the last minute, or since the start when that is less."""
        now = time.monotonic()
        while self._ended and self._ended[0][0] < now - RATE_WINDOW_S:
            self._parked_before = self._ended.popleft()
        began = max(self._began, now - RATE_WINDOW_S)
        parked_s = (self._parked_s() - self._parked_before[1]) / self.concurrency
        beyond_s = max(0.0, began - self._parked_before[0])
        worked_s = now - began - max(0.0, parked_s - beyond_s)
        return len(self._ended) * 60.0 / max(worked_s, 1.0 if self._ended and parked_s else 1e-9)

    async def _place(self) -> None:
        while True:
            news = self._news
            ticket = await self.source.next()
            if ticket is not None:
                await self._episode(ticket)
            elif self.source.exhausted:
                return
            else:
                await news.wait()

    async def _episode(self, ticket: EpisodeRequest) -> None:
        try:
            result = await self._run_episode(ticket)
        except asyncio.CancelledError:
            await asyncio.shield(self.source.on_result(errored_result(ticket, "cancelled", "the run was ended")))
            raise
        except BaseException as error:
            await self.source.on_result(errored_result(ticket, "infrastructure", f"{type(error).__name__}: {error}"))
            raise
        self.episodes_ended += 1
        self._ended.append((time.monotonic(), self._parked_s()))
        await self.source.on_result(result)
        self.wake()
        self._count_outage(result)

    def _count_outage(self, result: EpisodeResult) -> None:
        if not (isinstance(result.outcome, Errored) and result.outcome.cause == "infrastructure"):
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= self._failures_allowed:
            raise InfrastructureError(
                f"{self._failures} episodes in a row had no score; the last: {result.outcome.message}"
            )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group; several places usually fail by the same cause."""
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
