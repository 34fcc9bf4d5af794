"""The leases of a bridge. Invariant: a lease that nobody has used for `idle_s` is given back, and one that is over opens nothing.

A lease has a door: a port of its own, at which OSWorld's clients, which know only a host and a port, find its desktop.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from deskhand.desktop.base import DesktopSpec, Frame, Lease, StageableDesktop
from deskhand.server.api_keys import digest, new_key
from deskhand.server.guest import Guest
from deskhand.server.http_errors import HttpError
from deskhand.server.idempotency import ReplyCache
from deskhand.server.lease_events import LeaseEvents
from deskhand.server.screen_recording import ScreenRecording

log = structlog.get_logger()
REMEMBERED = 1024
"""Leases that are over, so that their holders are told so."""
UNCLAIMED_S = 60.0
"""A lease whose client was gone when it was granted may be idle for so long at most: it may ask again, but not for ever."""


@dataclass(eq=False)
class ActiveLease:
    """One lease that is out. `kept` is the digest of its key; `port` its door, 0 for none."""

    id: str
    lease: Lease
    template: DesktopSpec
    kept: bytes
    port: int
    used: float
    guest: Guest = field(init=False)
    in_use: int = 0
    is_released: bool = False
    recording: ScreenRecording | None = None
    sent: Frame | None = None
    """The frame that its client was sent last."""
    replies: ReplyCache = field(default_factory=ReplyCache)
    events: LeaseEvents = field(default_factory=LeaseEvents)

    def __post_init__(self) -> None:
        self.guest = Guest(self.lease.desktop, *self.size)

    def renewed(self, template: DesktopSpec) -> None:
        """The desktop has been reset to `template`: what was known of its guest is gone."""
        self.guest.close()
        self.template, self.sent = template, None
        self.guest = Guest(self.lease.desktop, *self.size)

    @property
    def desktop(self) -> StageableDesktop:
        return self.lease.desktop

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the screen in pixels."""
        return self.template.width, self.template.height


class LeasablePool(Protocol):
    """What lends desktops: embedded ones (`DesktopPool`) or machines (`MachinePool`)."""

    size: int
    template: DesktopSpec

    async def lease(self, template: DesktopSpec | None = None) -> Lease: ...

    async def release(self, lease: Lease) -> None: ...


class ActiveLeases:
    """Leases from `pool`. `doors` are the ports to give out; `clock` counts seconds."""

    def __init__(
        self,
        pool: LeasablePool,
        doors: Sequence[int] = (),
        *,
        tunnels: int = 0,
        idle_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.idle_s = idle_s
        self.now = clock
        self._free = deque(doors)
        self.doors = frozenset(doors)
        self.tunnels = tunnels
        """The port at which tunnels to guests are asked for (`tunnel.py`), 0 for none."""
        self._held: dict[str, ActiveLease] = {}
        self._over: OrderedDict[str, bytes] = OrderedDict()
        self._sweeper: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[ActiveLease]:
        return iter(list(self._held.values()))

    async def acquire(self, template: DesktopSpec | None, wait_s: float) -> tuple[ActiveLease, str]:
        """A new lease and its key. Raises `Refused` (503) when no desktop is free within `wait_s`."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        wanted = template or self.pool.template
        try:
            async with asyncio.timeout(wait_s):
                lease = await self.pool.lease(wanted)
        except TimeoutError:
            message = f"all {self.pool.size} desktops are leased; ask again, or start the bridge with more"
            raise HttpError(503, message, {"retry-after": "5"}) from None
        key = new_key()
        port = self._free.popleft() if self._free else 0
        held = ActiveLease(secrets.token_hex(8), lease, wanted, digest(key), port, self.now())
        self._held[held.id] = held
        held.events.publish("leased", epoch=lease.epoch)
        log.info("bridge.leased", lease=held.id, epoch=lease.epoch, port=port)
        return held, key

    def find(self, lease_id: str) -> ActiveLease | None:
        return self._held.get(lease_id)

    def over(self, lease_id: str) -> bytes | None:
        """The digest of the key of a lease that has ended lately."""
        return self._over.get(lease_id)

    def by_port(self, port: int) -> ActiveLease | None:
        return next((held for held in self._held.values() if held.port == port), None) if port else None

    @contextlib.contextmanager
    def using(self, held: ActiveLease) -> Iterator[ActiveLease]:
        """While a request works on a lease it is not idle."""
        held.in_use += 1
        try:
            yield held
        finally:
            held.in_use -= 1
            held.used = self.now()

    def release_unclaimed(self, held: ActiveLease) -> None:
        """The client of a new lease is gone: the lease is idle soon, unless who asks for it again uses it."""
        held.used = min(held.used, self.now() - self.idle_s + UNCLAIMED_S)

    async def end(self, held: ActiveLease, reason: str) -> None:
        """Give the desktop back. A second call does nothing."""
        if self._held.pop(held.id, None) is None:
            return
        held.is_released = True
        self._over[held.id] = held.kept
        while len(self._over) > REMEMBERED:
            self._over.popitem(last=False)
        held.events.publish("over", reason=reason)
        held.guest.close()
        if held.recording is not None:
            held.recording.stop()
        if held.port:
            self._free.append(
                held.port
            )  # the last to be given out again, so that late clients do not meet a stranger's desktop
        log.info("bridge.released", lease=held.id, epoch=held.lease.epoch, reason=reason)
        await self.pool.release(held.lease)

    async def reclaim(self) -> None:
        """End every lease that has been idle for too long."""
        for held in self:
            if not held.in_use and self.now() - held.used > self.idle_s:
                await self.end(held, "idle")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(max(0.05, self.idle_s / 8))
            try:
                await self.reclaim()
            except Exception:  # one desktop that cannot be ended must not keep the others
                log.exception("bridge.not_reclaimed")

    async def close(self) -> None:
        """End every lease. Idempotent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for held in self:
            await self.end(held, "the bridge closes")
