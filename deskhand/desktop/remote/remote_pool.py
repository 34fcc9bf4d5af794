"""Base class of pools that lease desktops from a desktop server or a sandbox provider.

Subclassed by `server_desktop.ServerPool` and `sandbox_desktop.SandboxPool`, which implement `_acquire`. A lease is
renewed until it is released, even while its episode waits for quota. A lease that cannot be released expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import abstractmethod
from typing import Protocol

import structlog

from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec, Lease, StageableDesktop
from deskhand.desktop.remote.quota import QuotaGate, QuotaManager
from deskhand.desktop.remote.sandbox_api import SandboxApi
from deskhand.desktop.remote.transport import HttpTransport, Sandbox
from deskhand.errors import ConfigError, InfrastructureError

log = structlog.get_logger()
RENEWALS_PER_TTL = 4
"""Renewals per time to live of a lease."""


class LeasedDesktop(StageableDesktop, Protocol):
    """A desktop and the sandbox or lease behind it."""

    @property
    def sandbox(self) -> Sandbox: ...


class RemotePool(contextlib.AbstractAsyncContextManager):
    """Leases desktops through `transport`; refused work waits at `gate`, which belongs to `quota`.

    `ttl_s` is the requested time to live of an unrenewed lease (0: the server's).
    """

    def __init__(
        self,
        transport: HttpTransport | SandboxApi,
        gate: QuotaGate,
        quota: QuotaManager,
        *,
        spec: DesktopSpec | None,
        timeouts: RemoteTimeouts | None,
        ttl_s: float = 0.0,
    ) -> None:
        self.transport = transport
        self.gate, self.quota = gate, quota
        self.spec = spec or DesktopSpec()
        self.episode_timeout_s = (timeouts or RemoteTimeouts()).episode_s
        self.ttl_s = ttl_s
        self._epochs = itertools.count(1)
        self._created: set[str] = set()
        self._active: dict[int, tuple[LeasedDesktop, asyncio.Task[None]]] = {}

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @abstractmethod
    async def _acquire(self, spec: DesktopSpec) -> LeasedDesktop:
        """Return a newly leased desktop."""

    async def lease(self, spec: DesktopSpec | None = None) -> Lease:
        """Return a fresh desktop in the state `spec` (default: the pool's). Waits while none is free."""
        wanted = spec or self.spec
        desktop = await self._acquire(wanted)
        epoch = desktop.sandbox.epoch or next(self._epochs)
        await self._end(epoch)  # a restarted server without a lease store reuses epochs
        self._active[epoch] = desktop, asyncio.create_task(self._renew(desktop))
        return Lease(desktop, epoch)

    async def delete(self, sandbox: Sandbox) -> None:
        """Delete a sandbox; if that fails, it expires. Idempotent."""
        if sandbox.id not in self._created:
            return
        self._created.discard(sandbox.id)
        try:
            with contextlib.suppress(InfrastructureError, ConfigError):  # or the certificate has expired by now
                await self.transport.delete(sandbox)
        finally:
            self.gate.desktops.released()

    async def _renew(self, desktop: LeasedDesktop) -> None:
        """Each lease has its own task, so that one unreachable server does not delay the others."""
        while True:
            ttl_s = self.ttl_s or desktop.sandbox.ttl_s
            await asyncio.sleep(ttl_s / RENEWALS_PER_TTL)
            try:
                async with asyncio.timeout(ttl_s / 2):
                    await self.transport.renew(desktop.sandbox, ttl_s)
            except Exception as error:  # of any SDK; the next call of the episode reports the cause
                log.info("sandboxes.renew_failed", sandbox=desktop.sandbox.id, error=type(error).__name__)

    async def release(self, lease: Lease) -> None:
        """Return a lease. Idempotent; a stale lease of the same epoch is ignored."""
        if (found := self._active.get(lease.epoch)) is not None:
            sandbox = found[0].sandbox
            if getattr(lease.desktop, "sandbox", sandbox) is sandbox:  # a wrapped desktop may lack the attribute
                await self._end(lease.epoch)

    async def _end(self, epoch: int) -> None:
        found = self._active.pop(epoch, None)
        if found is not None:
            desktop, renewing = found
            renewing.cancel()
            try:
                await desktop.close()
            finally:
                await self.delete(desktop.sandbox)

    async def close(self) -> None:
        """Return all leases. Idempotent."""
        await asyncio.gather(*(self._end(epoch) for epoch in list(self._active)))
        await self.transport.close()
