"""Scheduler of concurrent episodes.

Used by the training loop and by evaluations; start with `Scheduler.run`. Each worker runs episode after episode from
an `EpisodeSource`, and holds a slot until the agent has ended; `wake` wakes workers that found no work. Episodes never
wait for each other: with `num_judging`, not even for the judge of another.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from deskhand.errors import CodeError, InfrastructureError
from deskhand.rollout.episode import errored_result
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.tasks.judge import AlreadySolvedError
from deskhand.tasks.outcome import Errored

RATE_WINDOW_S = 60.0
MAX_BUGS = 3
"""Episodes that may end in a mistake of the code before the run ends."""


@contextmanager
def frozen_gc() -> Iterator[None]:
    """Collect garbage now and exempt living objects from collections in the body. Enter when everything is loaded."""
    # A full collection in a process with torch and transformers blocks the event loop for 0.2 s.
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class EpisodeSource(Protocol):
    """Supplier of episodes and receiver of their results."""

    async def next(self) -> EpisodeRequest | None:
        """Return the next episode; None if there is no work now."""
        ...

    async def on_result(self, result: EpisodeResult) -> None:
        """Receive a result; called once per episode, including canceled ones."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether no more episodes will come."""
        ...


class Scheduler:
    """Runs the episodes of `source`, at most `concurrency` of them with an agent at work.

    Args:
        num_judging: Maximum number of further episodes that are only being judged, each on its desktop.
        max_failures: Consecutive infrastructure errors before `run` raises `InfrastructureError`, and consecutive
            episodes of solved tasks before it raises `AlreadySolvedError`.
        quota_wait_s: Returns the time episodes have waited for quota, summed over episodes; rates exclude it.
    """

    def __init__(
        self,
        source: EpisodeSource,
        run_episode: Callable[[EpisodeRequest], Awaitable[EpisodeResult]],
        concurrency: int,
        *,
        num_judging: int = 0,
        max_failures: int | None = None,
        quota_wait_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.source = source
        self.concurrency, self._num_workers = concurrency, concurrency + num_judging
        self._slots = asyncio.Semaphore(concurrency)
        self._run_episode = run_episode
        self._max_failures = max_failures if max_failures is not None else max(8, 3 * concurrency)
        self._failures = self._bugs = 0
        self._woken = asyncio.Event()
        self._ended: deque[tuple[float, float]] = deque()
        """End time of recent episodes and the quota wait until then."""
        self._quota_wait_s = quota_wait_s
        self._before_window = (time.monotonic(), quota_wait_s())
        self._started = time.monotonic()
        self._busy_s, self._running = 0.0, dict[str, float]()
        """Seconds of the episodes that hold no slot any more, and the start of each one that does."""

    def busy_s(self, now: float) -> float:
        """Return the seconds that slots were held by episodes until `now` (`time.monotonic`), summed over the slots."""
        return self._busy_s + sum(now - started for started in self._running.values())

    async def run(self) -> None:
        """Run until the source is exhausted. Canceling it cancels all episodes and waits for their cleanup.

        Raises `InfrastructureError` after `max_failures`, `CodeError` after `MAX_BUGS`, and errors of the source or of
        an episode's cleanup.
        """
        self._started = time.monotonic()
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._num_workers):
                    workers.create_task(self._work())
        except BaseExceptionGroup as group:
            raise _first(group) from None

    def wake(self) -> None:
        """Wake the waiting workers, for example after a group was removed."""
        self._woken.set()
        self._woken = asyncio.Event()

    @property
    def episodes_per_minute(self) -> float:
        """Rate over the last minute, or since the start if that is shorter."""
        now = time.monotonic()
        while self._ended and self._ended[0][0] < now - RATE_WINDOW_S:
            self._before_window = self._ended.popleft()
        start = max(self._started, now - RATE_WINDOW_S)
        wait_s = (self._quota_wait_s() - self._before_window[1]) / self.concurrency
        before_window_s = max(0.0, start - self._before_window[0])
        worked_s = now - start - max(0.0, wait_s - before_window_s)
        return len(self._ended) * 60.0 / max(worked_s, 1.0 if self._ended and wait_s else 1e-9)

    async def _work(self) -> None:
        while True:
            await self._slots.acquire()
            woken = self._woken
            request = await self.source.next()
            if request is not None:
                self._running[request.episode_id] = time.monotonic()
                free = partial(self._free_slot, request.episode_id)
                try:
                    await self._episode(replace(request, on_agent_ended=free))
                finally:
                    free()
                continue
            self._slots.release()
            if self.source.exhausted:
                return
            await woken.wait()

    def _free_slot(self, episode_id: str) -> None:
        """Let another episode start; once per episode."""
        if (started := self._running.pop(episode_id, None)) is not None:
            self._busy_s += time.monotonic() - started
            self._slots.release()

    async def _episode(self, request: EpisodeRequest) -> None:
        try:
            result = await self._run_episode(request)
        except asyncio.CancelledError:
            await asyncio.shield(self.source.on_result(errored_result(request, "cancelled", "the run was stopped")))
            raise
        except BaseException as error:
            await self.source.on_result(errored_result(request, "infrastructure", f"{type(error).__name__}: {error}"))
            raise
        self._ended.append((time.monotonic(), self._quota_wait_s()))
        await self.source.on_result(result)
        self.wake()
        self._count_failure(result)

    def _count_failure(self, result: EpisodeResult) -> None:
        if isinstance(result.outcome, Errored) and result.outcome.cause == "bug":
            self._bugs += 1
            if self._bugs >= MAX_BUGS:
                raise CodeError(f"{self._bugs} episodes ended in a mistake of the code; last: {result.outcome.message}")
        # in training, which would draw such tasks for ever
        counted = ("infrastructure", "already_solved") if result.group_id is not None else ("infrastructure",)
        if not (isinstance(result.outcome, Errored) and result.outcome.cause in counted):
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= self._max_failures:
            kind = InfrastructureError if result.outcome.cause == "infrastructure" else AlreadySolvedError
            raise kind(f"{self._failures} consecutive episodes failed; last error: {result.outcome.message}")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group; slots usually fail for one cause."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
