"""Pool of existing machines (OSWorld, WAA): one lease per machine, reset before each lease.

Built by `desktop.factory.build_machine_pool`. A machine whose reset fails is quarantined, with exponentially growing
pauses.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Self

import httpx2
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
    """Leases machines in turn. Raises `ConfigError` if `urls` is empty or has duplicates.

    `make` returns the desktop of a machine by URL; `lease_store` and `connections` are closed with the pool.
    """

    def __init__(
        self,
        urls: Sequence[str],
        make: Callable[[str], StageableDesktop],
        *,
        spec: DesktopSpec | None = None,
        quota: QuotaManager | None = None,
        timeouts: RemoteTimeouts | None = None,
        lease_store: LeaseStore | None = None,
        connections: Mapping[str, httpx2.AsyncClient] | None = None,
        quarantine_s: float = QUARANTINE_S,
        clock: Callable[[], float] = time.monotonic,
        backend: str = "osworld",
    ) -> None:
        if not urls or len(set(urls)) != len(urls):
            raise ConfigError("desktop.urls: must list each machine exactly once")
        self.spec = spec or DesktopSpec()
        self.quota = quota or QuotaManager()
        self.episode_timeout_s = (timeouts or RemoteTimeouts()).episode_s
        self._make, self._connections = make, {} if connections is None else connections
        self._quarantine_s, self._clock = quarantine_s, clock
        self._free: deque[str] = deque(urls)
        self._quarantined: dict[str, float] = {}
        """When a failed machine may be tried again, by URL."""
        self._failures: dict[str, int] = {}
        self._active: dict[int, tuple[str, StageableDesktop]] = {}
        self._changed = asyncio.Event()
        self.lease_store = lease_store or LeaseStore()
        self.size = len(urls)
        self.backend = backend
        """`desktop.backend` of the machines: "osworld" or "waa"."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def lease(self, spec: DesktopSpec | None = None) -> Lease:
        """Return a machine after a reset. Waits while all are leased or quarantined.

        Raises `InfrastructureError` if every machine failed during this call.
        """
        requested = spec or self.spec
        failed: dict[str, str] = {}
        while True:
            url = await self._take(failed)
            desktop: StageableDesktop | None = None
            try:
                desktop = self._make(url)
                await desktop.reset(requested)
            except InfrastructureError as error:
                failed[url] = str(error)
                self._quarantine(url, error)
                await _close(desktop)
                continue
            except BaseException:
                self._put_back(url)
                await _close(desktop)
                raise
            self._failures.pop(url, None)
            try:
                epoch = self.lease_store.grant(url)
            except InfrastructureError:
                self._put_back(url)
                await desktop.close()
                raise
            self._active[epoch] = (url, desktop)
            return Lease(desktop, epoch)

    async def _take(self, failed: dict[str, str]) -> str:
        while True:
            now = self._clock()
            for url in [each for each, until in self._quarantined.items() if until <= now]:
                del self._quarantined[url]
                self._free.append(url)
            if self._free:
                return self._free.popleft()
            if failed and not self._active and len(failed) == self.size:
                raise InfrastructureError(f"no usable machine; last error: {list(failed.values())[-1]}")
            self._changed.clear()
            wait_s = max(0.05, min(self._quarantined.values()) - now) if self._quarantined else None
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _quarantine(self, url: str, error: Exception) -> None:
        num_failures = self._failures[url] = self._failures.get(url, 0) + 1
        pause_s = min(MAX_QUARANTINE_S, self._quarantine_s * 2 ** (num_failures - 1))
        self._quarantined[url] = self._clock() + pause_s
        log.warning("machine.quarantined", machine=url, seconds=pause_s, error=str(error))
        self._changed.set()

    def _put_back(self, url: str) -> None:
        self._free.append(url)
        self._changed.set()

    async def release(self, lease: Lease) -> None:
        """Return a machine. Idempotent."""
        active = self._active.pop(lease.epoch, None)
        if active is not None:
            self.lease_store.end(lease.epoch, "released")
            try:
                await active[1].close()
            finally:
                self._put_back(active[0])

    async def close(self) -> None:
        """Release all machines without changing them. Idempotent."""
        for epoch, (url, desktop) in self._active.items():
            self.lease_store.end(epoch, "the pool was closed")
            await desktop.close()
            self._free.append(url)
        self._active.clear()
        for http in self._connections.values():
            await http.aclose()
        self.lease_store.close()


async def _close(desktop: StageableDesktop | None) -> None:
    if desktop is not None:
        await desktop.close()
