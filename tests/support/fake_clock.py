"""A clock for tests: time passes only when a test says so, and whoever sleeps is woken at the right moment, in
order."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from deskhand.desktop.remote.quota import Clock


class FakeClock:
    """`clock` is what the code under test is given. `wall` begins at `epoch` and may jump."""

    def __init__(self, epoch: float = 1_800_000_000.0) -> None:
        self.time = 0.0
        self.jump = 0.0
        self._epoch = epoch
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._numbers = itertools.count()
        self.clock = Clock(lambda: self.time, lambda: self._epoch + self.time + self.jump, self.sleep)

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        heapq.heappush(self._sleepers, (self.time + seconds, next(self._numbers), event))
        await event.wait()

    async def settle(self) -> None:
        """Let everything run that does not wait for time."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def pass_(self, seconds: float) -> None:
        """So much time passes."""
        until = self.time + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, event = heapq.heappop(self._sleepers)
            self.time = max(self.time, due)
            event.set()
            await self.settle()
        self.time = until
        await self.settle()
