"""Leases of desktops that others lend. Invariant: a lease is renewed while it goes on, also while its episode is parked,
and given back once; what cannot be given back now ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self

import structlog

from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec, Lease, StageableDesktop
from deskhand.desktop.remote.quota import QuotaGate, QuotaManager
from deskhand.desktop.remote.transport import LeaseTransport, Sandbox
from deskhand.errors import InfrastructureError

log = structlog.get_logger()
RENEWALS_PER_TTL = 4
"""How often a lease is renewed within the time after which one that nobody uses ends."""


class LentDesktop(StageableDesktop, Protocol):
    """A desktop, and what was lent for it."""

    @property
    def sandbox(self) -> Sandbox: ...


class RemotePool(ABC):
    """Leases by `transport`, as `DesktopPool` gives them. Refused work waits at `gate`, which is one of `lot`; `ttl_s` (0: as
    each of them says) is how long a desktop is lent that is not renewed."""

    def __init__(
        self,
        transport: LeaseTransport,
        gate: QuotaGate,
        lot: QuotaManager,
        *,
        template: DesktopSpec | None,
        timeouts: RemoteTimeouts | None,
        ttl_s: float = 0.0,
    ) -> None:
        self.transport = transport
        self.gate, self.quota = gate, lot
        self.template = template or DesktopSpec()
        self.episode_timeout_s = (timeouts or RemoteTimeouts()).episode_s
        self.ttl_s = ttl_s
        self._epochs = itertools.count(1)
        self._created: set[str] = set()
        self._held: dict[int, tuple[LentDesktop, asyncio.Task[None]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def _taken(self, template: DesktopSpec) -> LentDesktop:
        """A desktop that is lent from now on."""

    async def lease(self, template: DesktopSpec | None = None) -> Lease:
        """A fresh desktop in the state `template` (default: the pool's). Waits while none is free."""
        wanted = template or self.template
        desktop = await self._taken(wanted)
        epoch = desktop.sandbox.epoch or next(self._epochs)
        await self._end(epoch)  # a server that was started anew, and keeps no leases on disk, counts from 1 again
        self._held[epoch] = desktop, asyncio.create_task(self._renew(desktop))
        return Lease(desktop, epoch)

    async def delete(self, sandbox: Sandbox) -> None:
        """End what was lent; what cannot be ended now ends by itself. A second time does nothing."""
        if sandbox.id not in self._created:
            return
        self._created.discard(sandbox.id)
        try:
            with contextlib.suppress(InfrastructureError):
                await self.transport.delete(sandbox)
        finally:
            self.gate.desktops.released()

    async def _renew(self, desktop: LentDesktop) -> None:
        """Each by itself: one that is away must not cost the others their time."""
        while True:
            ttl_s = self.ttl_s or desktop.sandbox.ttl_s
            await asyncio.sleep(ttl_s / RENEWALS_PER_TTL)
            try:
                async with asyncio.timeout(ttl_s / 2):
                    await self.transport.renew(desktop.sandbox, ttl_s)
            except Exception as error:  # also of a vendor's SDK; the next call of the episode says what is wrong
                log.info("gateway.not_renewed", sandbox=desktop.sandbox.id, error=type(error).__name__)

    async def release(self, lease: Lease) -> None:
        """Give a lease back. A second release of the same lease does nothing, nor one of an earlier lease of its epoch."""
        if (found := self._held.get(lease.epoch)) is not None:
            lent = found[0].sandbox
            if getattr(lease.desktop, "sandbox", lent) is lent:  # one that is wrapped may not say
                await self._end(lease.epoch)

    async def _end(self, epoch: int) -> None:
        found = self._held.pop(epoch, None)
        if found is not None:
            desktop, renewing = found
            renewing.cancel()
            try:
                await desktop.close()
            finally:
                await self.delete(desktop.sandbox)

    async def close(self) -> None:
        """Give all leases back. Idempotent."""
        await asyncio.gather(*(self._end(epoch) for epoch in list(self._held)))
        await self.transport.close()
