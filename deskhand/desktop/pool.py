"""Leases on embedded desktops. Invariant: a desktop is used by one lease only, and what is released is torn down, never reused.

Spares are started in the background, so a lease is usually handed a desktop that is already up. What a lease may do ends with it:
`desktop_of` knows its epoch (`leases.py`) or refuses. A lease with a time to live ends when its holder falls silent.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from deskhand.desktop import host_capacity
from deskhand.desktop.base import DesktopSpec, Lease, StageableDesktop
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError, InfrastructureError

START_ATTEMPTS = 3
REMEMBERED_LEASES = 16
SHORTEST_TTL_S = 0.1


class DesktopPool:
    """At most `size` leases at a time and `spares` desktops kept ready, in the states that were asked for lately.

    `template` is the state when nothing is asked for; `make` builds a desktop that is not started; `book` (closed with the pool)
    outlives the pool when it is a file. Raises `ConfigError` for wrong numbers, and for more desktops than the machine has room
    for when each uses `expected_mib` (None: they run elsewhere, and this machine is not asked).
    """

    def __init__(
        self,
        size: int,
        template: DesktopSpec | None = None,
        *,
        spares: int = 1,
        make: Callable[[], StageableDesktop] = LocalDesktop,
        book: LeaseStore | None = None,
        expected_mib: float | None = host_capacity.EXPECTED_MIB,
    ) -> None:
        if size < 1 or spares < 0:
            raise ConfigError(f"pool of {size} desktops with {spares} spares: size must be >= 1 and spares >= 0")
        if expected_mib is not None:
            host_capacity.check_fits(size + spares, expected_mib)
        self.book = book or LeaseStore()
        self.quota = self.episode_timeout_s = None
        self.size = size
        self.template = template or DesktopSpec()
        self._spares = spares
        self._make = make
        self._recent: deque[DesktopSpec] = deque([self.template], maxlen=REMEMBERED_LEASES)
        self._ready: list[tuple[DesktopSpec, StageableDesktop]] = []
        self._starting: list[DesktopSpec] = []
        self._background: set[asyncio.Task[None]] = set()
        self._leased: dict[int, StageableDesktop] = {}
        self._taken = 0
        self._place = asyncio.Condition()
        self._reclaimer: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> DesktopPool:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def warm_up(self) -> int:
        """Wait for what runs in the background; returns how many spares can be handed out at once."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        return len(self._ready)

    async def start(self) -> None:
        """Start the first desktop: a machine that cannot run any says so at once, by `ConfigError` or `InfrastructureError`."""
        self._ready.append((self.template, await self._started(self.template)))
        self._refill()

    async def _started(self, template: DesktopSpec) -> StageableDesktop:
        failure: InfrastructureError | None = None
        for _ in range(START_ATTEMPTS):
            desktop = self._make()
            try:
                await desktop.reset(template)
                return desktop
            except InfrastructureError as error:
                failure = error
                await desktop.close()
            except BaseException:
                await desktop.close()
                raise
        raise InfrastructureError(
            f"no desktop started in {START_ATTEMPTS} attempts "
            f"({len(self._leased)} leased, {len(self._ready)} spare, size {self.size}): {failure}"
        ) from failure

    async def lease(
        self, template: DesktopSpec | None = None, *, holder: str = "", ttl_s: float | None = None
    ) -> Lease:
        """A fresh desktop in the state `template` (default: the pool's). Waits while `size` leases are out.

        With `ttl_s` the lease ends by itself when neither `heartbeat` nor `desktop_of` has named it for so long.
        """
        if ttl_s is not None and ttl_s < SHORTEST_TTL_S:
            raise ConfigError(f"a lease of {ttl_s:g} s: give {SHORTEST_TTL_S:g} or more")
        wanted = template or self.template
        async with self._place:
            await self._place.wait_for(lambda: self._closed or self._taken < self.size)
            if self._closed:
                raise InfrastructureError("the desktop pool is closed")
            self._taken += 1
        self._recent.append(wanted)
        try:
            desktop = self._take(wanted) or await self._started(wanted)
            if self._closed:
                await desktop.close()
                raise InfrastructureError("the desktop pool is closed")
        except BaseException:
            await self._free_place()
            raise
        try:
            epoch = self.book.grant(holder, getattr(desktop, "label", ""), ttl_s)
        except InfrastructureError:
            self._spawn(desktop.close())
            await self._free_place()
            raise
        self._leased[epoch] = desktop
        if ttl_s is not None and self._reclaimer is None:
            self._reclaimer = asyncio.ensure_future(self._reclaim())
        self._refill()
        return Lease(desktop, epoch)

    def heartbeat(self, epoch: int) -> None:
        """The holder lives. Raises `LeaseEnded` when the lease is over."""
        self.book.check(epoch)

    def desktop_of(self, epoch: int) -> StageableDesktop:
        """The desktop of a lease that goes on. Raises `LeaseEnded` for any other: a late caller reaches nothing."""
        self.book.check(epoch)
        return self._leased[epoch]

    async def _reclaim(self) -> None:
        """Take back what silent holders had."""
        while not self._closed:
            for epoch in self.book.expired():
                await self._end(epoch, "its holder fell silent")
            waits = [row.ttl_s for row in self.book.active() if row.ttl_s is not None]
            await asyncio.sleep(min([1.0, *waits]) / 4)

    async def _free_place(self) -> None:
        async with self._place:
            self._taken -= 1
            self._place.notify_all()  # one that is told alone, and cancelled before it looks, would keep the place from the others

    def _take(self, template: DesktopSpec) -> StageableDesktop | None:
        for index, (ready_for, desktop) in enumerate(self._ready):
            if ready_for == template:
                del self._ready[index]
                return desktop
        return None

    def _refill(self) -> None:
        """Start what is asked for most and least in stock; a spare that nobody asked for lately makes room."""
        for entry in [entry for entry in self._ready if entry[0] not in self._recent]:
            self._ready.remove(entry)
            self._spawn(entry[1].close())
        while not self._closed and len(self._ready) + len(self._starting) < self._spares:
            asked = Counter(self._recent)
            stock = Counter([template for template, _ in self._ready] + self._starting)
            wanted = max(asked, key=lambda template: asked[template] / (1 + stock[template]))
            self._starting.append(wanted)
            self._spawn(self._prepare(wanted))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _prepare(self, template: DesktopSpec) -> None:
        try:
            desktop = await self._started(template)
        except (InfrastructureError, ConfigError):
            return  # the next lease starts one itself and reports why it cannot
        finally:
            self._starting.remove(template)
        if self._closed:
            await desktop.close()
        else:
            self._ready.append((template, desktop))

    async def release(self, lease: Lease) -> None:
        """Give a lease back; its desktop is torn down in the background. A second release of the same lease does nothing."""
        await self._end(lease.epoch, "released")

    async def _end(self, epoch: int, reason: str) -> None:
        desktop = self._leased.pop(epoch, None)
        if desktop is None or not self.book.end(epoch, reason):
            return
        self._spawn(desktop.close())
        await self._free_place()
        self._refill()

    async def close(self) -> None:
        """End every desktop, leased or not; whoever waits for a lease gets an `InfrastructureError`. Idempotent."""
        async with self._place:
            self._closed = True
            self._place.notify_all()
        if self._reclaimer is not None:
            self._reclaimer.cancel()
        for epoch in self._leased:
            self.book.end(epoch, "the pool was closed")
        desktops = [desktop for _, desktop in self._ready] + list(self._leased.values())
        self._ready.clear()
        self._leased.clear()
        await asyncio.gather(*(desktop.close() for desktop in desktops), return_exceptions=True)
        await self.warm_up()
        self.book.close()
