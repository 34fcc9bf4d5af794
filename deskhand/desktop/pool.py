"""Leases on local desktops: `DesktopPool`.

Desktops are prewarmed in the background.

Invariant: a desktop serves one lease, and is closed, not reused, when that lease ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, Self

from deskhand import pausable_timeout
from deskhand.desktop import host_capacity
from deskhand.desktop.base import DesktopSpec, Lease, StageableDesktop
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError, InfrastructureError

START_ATTEMPTS = 3
MAX_RECENT_SPECS = 16


class DesktopPool:
    """At most `size` concurrent leases and `prewarm` idle desktops, in the states that were requested lately.

    `spec` is the default state, `make` builds an unstarted desktop, and `lease_store` is closed with the pool.
    `memory_request_mib` None skips the capacity check, for desktops on other machines. Raises `ConfigError` if the
    numbers are invalid or the desktops do not fit on this machine.
    """

    def __init__(
        self,
        size: int,
        spec: DesktopSpec | None = None,
        *,
        prewarm: int = 1,
        make: Callable[[], StageableDesktop] = LocalDesktop,
        lease_store: LeaseStore | None = None,
        memory_request_mib: float | None = host_capacity.DEFAULT_MEMORY_REQUEST_MIB,
    ) -> None:
        if size < 1 or prewarm < 0:
            raise ConfigError(f"desktop pool: size must be >= 1 and prewarm >= 0, got {size} and {prewarm}")
        if memory_request_mib is not None:
            host_capacity.check_fits(size + prewarm, memory_request_mib)
        self.lease_store = lease_store or LeaseStore()
        self.quota = self.episode_timeout_s = None
        self.size = size
        self.backend = "local"
        self.spec = spec or DesktopSpec()
        self._prewarm = prewarm
        self._make = make
        self._recent: deque[DesktopSpec] = deque([self.spec], maxlen=MAX_RECENT_SPECS)
        self._ready: list[tuple[DesktopSpec, StageableDesktop]] = []
        self._starting: list[DesktopSpec] = []
        self._background: set[asyncio.Task[None]] = set()
        self._leased: dict[int, StageableDesktop] = {}
        self._num_leased = 0
        self._slot_freed = asyncio.Condition()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def warm_up(self) -> int:
        """Wait for the background tasks; return the number of prewarmed desktops."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        return len(self._ready)

    async def start(self) -> None:
        """Start the first desktop. Raises `ConfigError` or `InfrastructureError` if this machine cannot run it."""
        self._ready.append((self.spec, await self._start_desktop(self.spec)))
        self._refill()

    async def _start_desktop(self, spec: DesktopSpec) -> StageableDesktop:
        failure: InfrastructureError | None = None
        for _ in range(START_ATTEMPTS):
            desktop = self._make()
            try:
                await desktop.reset(spec)
                return desktop
            except InfrastructureError as error:
                failure = error
                await desktop.close()
            except BaseException:
                await desktop.close()
                raise
        raise InfrastructureError(
            f"no desktop started in {START_ATTEMPTS} attempts "
            f"({len(self._leased)} leased, {len(self._ready)} prewarmed, size {self.size}): {failure}"
        ) from failure

    async def lease(self, spec: DesktopSpec | None = None) -> Lease:
        """Lease a fresh desktop in the state `spec` (default: the pool's). Waits while `size` leases are active.

        Enclosing pausable timeouts limit this wait, not the start of the desktop.
        """
        requested = spec or self.spec
        async with self._slot_freed:
            await self._slot_freed.wait_for(lambda: self._closed or self._num_leased < self.size)
            if self._closed:
                raise InfrastructureError("the desktop pool is closed")
            self._num_leased += 1
        self._recent.append(requested)
        desktop = None
        try:
            with pausable_timeout.pause_timeouts(measured=False):
                desktop = self._take_prewarmed(requested) or await self._start_desktop(requested)
            if self._closed:
                raise InfrastructureError("the desktop pool is closed")
            epoch = self.lease_store.grant(getattr(desktop, "label", ""))
        except BaseException:
            try:
                if desktop is not None:
                    await desktop.close()
            finally:
                await self._free_slot()
            raise
        self._leased[epoch] = desktop
        self._refill()
        return Lease(desktop, epoch)

    async def _free_slot(self) -> None:
        async with self._slot_freed:
            self._num_leased -= 1
            # notify(1) could wake a waiter that is being cancelled, and the slot would be lost.
            self._slot_freed.notify_all()

    def _take_prewarmed(self, spec: DesktopSpec) -> StageableDesktop | None:
        for index, (ready_for, desktop) in enumerate(self._ready):
            if ready_for == spec:
                del self._ready[index]
                return desktop
        return None

    def _refill(self) -> None:
        """Start desktops for the states with the highest demand per stock; close those not requested lately."""
        for item in [item for item in self._ready if item[0] not in self._recent]:
            self._ready.remove(item)
            self._spawn(item[1].close())
        while not self._closed and len(self._ready) + len(self._starting) < self._prewarm:
            demand = Counter(self._recent)
            stock = Counter([spec for spec, _ in self._ready] + self._starting)
            requested = max(demand, key=lambda spec: demand[spec] / (1 + stock[spec]))
            self._starting.append(requested)
            self._spawn(self._prepare(requested))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _prepare(self, spec: DesktopSpec) -> None:
        try:
            desktop = await self._start_desktop(spec)
        except (InfrastructureError, ConfigError):
            return  # the next lease starts a desktop itself and raises the error
        finally:
            self._starting.remove(spec)
        if self._closed:
            await desktop.close()
        else:
            self._ready.append((spec, desktop))

    async def release(self, lease: Lease) -> None:
        """End a lease; its desktop is closed in the background. Idempotent."""
        if (desktop := self._leased.pop(lease.epoch, None)) is not None:
            self.lease_store.end(lease.epoch, "released")
            self._spawn(desktop.close())
            await self._free_slot()
            self._refill()

    async def close(self) -> None:
        """Close every desktop. Callers that wait for a lease get an `InfrastructureError`. Idempotent."""
        async with self._slot_freed:
            self._closed = True
            self._slot_freed.notify_all()
        for epoch in self._leased:
            self.lease_store.end(epoch, "the pool was closed")
        desktops = [desktop for _, desktop in self._ready] + list(self._leased.values())
        self._ready.clear()
        self._leased.clear()
        await asyncio.gather(*(desktop.close() for desktop in desktops), return_exceptions=True)
        await self.warm_up()
        self.lease_store.close()
