"""Leases that the desktop server has granted: keys, ports, idle expiry.

Created by `server.process.serve_pool`; every HTTP route looks its lease up here. A lease may have a port of its own,
because OSWorld's clients address a desktop by host and port only.

Invariant: a lease that is idle for `idle_s` is released, and a released lease grants no access.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from deskhand import pausable_timeout
from deskhand.desktop.base import DesktopSpec, Frame, Lease, StageableDesktop
from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.pool import DesktopPool
from deskhand.server.api_keys import digest, new_key
from deskhand.server.guest import Guest
from deskhand.server.http_errors import HttpError
from deskhand.server.idempotency import ReplyCache
from deskhand.server.lease_events import LeaseEvents
from deskhand.server.screen_recording import ScreenRecording

log = structlog.get_logger()
MAX_RELEASED = 1024
"""Released leases whose keys are remembered, so that their former holders get 410 instead of 401."""
UNCLAIMED_S = 60.0
"""Idle time left to a lease whose client disconnected before the grant: long enough for a retry."""


@dataclass(eq=False)
class ActiveLease:
    """One granted lease. `port` is the port of its own, 0 if it has none."""

    id: str
    pool_lease: Lease
    spec: DesktopSpec
    key_digest: bytes
    port: int
    last_used: float
    guest: Guest = field(init=False)
    num_requests: int = 0
    """Requests in progress."""
    is_released: bool = False
    recording: ScreenRecording | None = None
    last_frame: Frame | None = None
    """Frame most recently sent to the client."""
    replies: ReplyCache = field(default_factory=ReplyCache)
    events: LeaseEvents = field(default_factory=LeaseEvents)

    def __post_init__(self) -> None:
        self.guest = Guest(self.desktop, *self.size)

    def on_reset(self, spec: DesktopSpec) -> None:
        """Discard the state of the previous guest after a reset to `spec`."""
        self.guest.close()
        self.spec, self.last_frame = spec, None
        self.guest = Guest(self.desktop, *self.size)

    @property
    def desktop(self) -> StageableDesktop:
        return self.pool_lease.desktop

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the screen in pixels."""
        return self.spec.width, self.spec.height


class ActiveLeases:
    """Granted leases of `pool`.

    Args:
        ports: Ports to assign to leases.
        tunnel_port: Port of the tunnel server, 0 if there is none.
        idle_s: Idle time after which a lease is released.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        pool: DesktopPool | MachinePool,
        ports: Sequence[int] = (),
        *,
        tunnel_port: int = 0,
        idle_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.idle_s = idle_s
        self.now = clock
        self.ports = frozenset(ports)
        self.tunnel_port = tunnel_port
        self._free_ports = deque(ports)
        self._active: dict[str, ActiveLease] = {}
        self._released: OrderedDict[str, bytes] = OrderedDict()
        self._expiry_task: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[ActiveLease]:
        return iter(list(self._active.values()))

    async def acquire(self, spec: DesktopSpec | None, wait_s: float) -> tuple[ActiveLease, str]:
        """Return a new lease and its key. Raises `HttpError` (503) if no desktop becomes free within `wait_s`."""
        if self._expiry_task is None:
            self._expiry_task = asyncio.create_task(self._expire_periodically())
        wanted = spec or self.pool.spec
        try:
            async with pausable_timeout.pausable_timeout(wait_s):  # not while the desktop starts
                pool_lease = await self.pool.lease(wanted)
        except TimeoutError:
            message = f"all {self.pool.size} desktops are leased; retry later, or start the server with more"
            raise HttpError(503, message, {"retry-after": "5"}) from None
        key = new_key()
        port = self._free_ports.popleft() if self._free_ports else 0
        lease = ActiveLease(secrets.token_hex(8), pool_lease, wanted, digest(key), port, self.now())
        self._active[lease.id] = lease
        lease.events.publish("leased", epoch=pool_lease.epoch)
        log.info("server.leased", lease=lease.id, epoch=pool_lease.epoch, port=port)
        return lease, key

    def find(self, lease_id: str) -> ActiveLease | None:
        return self._active.get(lease_id)

    def released_key_digest(self, lease_id: str) -> bytes | None:
        """Return the key digest of a recently released lease."""
        return self._released.get(lease_id)

    def by_port(self, port: int) -> ActiveLease | None:
        return next((lease for lease in self._active.values() if lease.port == port), None) if port else None

    @contextlib.contextmanager
    def using(self, lease: ActiveLease) -> Iterator[ActiveLease]:
        """Mark the lease as in use for the duration of a request."""
        lease.num_requests += 1
        try:
            yield lease
        finally:
            lease.num_requests -= 1
            lease.last_used = self.now()

    def release_unclaimed(self, lease: ActiveLease) -> None:
        """Let a lease whose client disconnected expire after `UNCLAIMED_S`, unless a retry of the request uses it."""
        lease.last_used = min(lease.last_used, self.now() - self.idle_s + UNCLAIMED_S)

    async def release(self, lease: ActiveLease, reason: str) -> None:
        """Return the desktop to the pool. Idempotent."""
        if self._active.pop(lease.id, None) is None:
            return
        lease.is_released = True
        self._released[lease.id] = lease.key_digest
        while len(self._released) > MAX_RELEASED:
            self._released.popitem(last=False)
        lease.events.publish("released", reason=reason)
        lease.guest.close()
        if lease.recording is not None:
            lease.recording.stop()
        if lease.port:
            self._free_ports.append(lease.port)  # reused last: a late client must not reach another client's desktop
        log.info("server.released", lease=lease.id, epoch=lease.pool_lease.epoch, reason=reason)
        await self.pool.release(lease.pool_lease)

    async def expire_idle(self) -> None:
        """Release every lease that has been idle for more than `idle_s`."""
        for lease in self:
            if not lease.num_requests and self.now() - lease.last_used > self.idle_s:
                await self.release(lease, "idle")

    async def _expire_periodically(self) -> None:
        while True:
            await asyncio.sleep(max(0.05, self.idle_s / 8))
            try:
                await self.expire_idle()
            except Exception:  # one desktop that cannot be released must not block the others
                log.exception("server.expiry_failed")

    async def close(self) -> None:
        """Release every lease. Idempotent."""
        if self._expiry_task is not None:
            self._expiry_task.cancel()
            self._expiry_task = None
        for lease in self:
            await self.release(lease, "the server is shutting down")
