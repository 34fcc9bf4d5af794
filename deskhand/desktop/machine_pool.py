"""Leases of machines that are there already, each with a server in it. Invariant: a machine is used by one lease at a time, and is
handed out only after a reset that worked; one that fails is set aside for a while and tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

import structlog

from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec, Lease, StageableDesktop
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.errors import ConfigError, InfrastructureError

log = structlog.get_logger()
QUARANTINE_S = 30.0
MAX_QUARANTINE_S = 600.0


class MachinePool:
    """`make(address)` is the desktop at one of `addresses`; machines are handed out in turn. `book` (closed with the pool) gives
    leases their epochs. Raises `ConfigError` for none or twice the same. `clock` counts seconds."""

    def __init__(
        self,
        addresses: Sequence[str],
        make: Callable[[str], StageableDesktop],
        *,
        template: DesktopSpec | None = None,
        lot: QuotaManager | None = None,
        timeouts: RemoteTimeouts | None = None,
        book: LeaseStore | None = None,
        aside_s: float = QUARANTINE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not addresses or len(set(addresses)) != len(addresses):
            raise ConfigError("give the address of each machine, once")
        self.template = template or DesktopSpec()
        self.quota = lot or QuotaManager()
        self.episode_timeout_s = (timeouts or RemoteTimeouts()).episode_s
        self._make = make
        self._aside_s, self._clock = aside_s, clock
        self._free: deque[str] = deque(addresses)
        self._aside: dict[str, float] = {}
        """When a machine that failed may be tried again."""
        self._failures: dict[str, int] = {}
        self._held: dict[int, tuple[str, StageableDesktop]] = {}
        self._changed = asyncio.Event()
        self.book = book or LeaseStore()
        self.size = len(addresses)

    async def __aenter__(self) -> MachinePool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def lease(self, template: DesktopSpec | None = None) -> Lease:
        """A machine after a reset. Waits while all are leased or set aside; raises `InfrastructureError` when each of them has
        failed once in this call."""
        wanted = template or self.template
        failed: dict[str, str] = {}
        while True:
            address = await self._take(failed)
            desktop: StageableDesktop | None = None
            try:
                desktop = self._make(address)
                await desktop.reset(wanted)
            except InfrastructureError as error:
                failed[address] = str(error)
                self._set_aside(address, error)
                await _closed(desktop)
                continue
            except BaseException:
                self._give_back(address)
                await _closed(desktop)
                raise
            self._failures.pop(address, None)
            try:
                epoch = self.book.grant("", address)
            except InfrastructureError:
                self._give_back(address)
                await desktop.close()
                raise
            self._held[epoch] = (address, desktop)
            return Lease(desktop, epoch)

    async def _take(self, failed: dict[str, str]) -> str:
        while True:
            now = self._clock()
            for address in [each for each, until in self._aside.items() if until <= now]:
                del self._aside[address]
                self._free.append(address)
            if self._free:
                return self._free.popleft()
            if failed and not self._held and len(failed) == self.size:
                raise InfrastructureError(f"no machine can be used; the last said: {list(failed.values())[-1]}")
            self._changed.clear()
            wait_s = max(0.05, min(self._aside.values()) - now) if self._aside else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _set_aside(self, address: str, error: Exception) -> None:
        times = self._failures[address] = self._failures.get(address, 0) + 1
        pause_s = min(MAX_QUARANTINE_S, self._aside_s * 2 ** (times - 1))
        self._aside[address] = self._clock() + pause_s
        log.warning("machine.aside", machine=address, seconds=pause_s, error=str(error))
        self._changed.set()

    def _give_back(self, address: str) -> None:
        self._free.append(address)
        self._changed.set()

    async def release(self, lease: Lease) -> None:
        """Give a machine back. A second release of the same lease does nothing."""
        held = self._held.pop(lease.epoch, None)
        if held is not None:
            self.book.end(lease.epoch, "released")
            try:
                await held[1].close()
            finally:
                self._give_back(held[0])

    async def close(self) -> None:
        """Idempotent. The machines stay as they are."""
        for epoch, (address, desktop) in self._held.items():
            self.book.end(epoch, "the pool was closed")
            await desktop.close()
            self._free.append(address)
        self._held.clear()
        self.book.close()


async def _closed(desktop: StageableDesktop | None) -> None:
    """One that was made is closed: its connections would stay open."""
    if desktop is not None:
        await desktop.close()
