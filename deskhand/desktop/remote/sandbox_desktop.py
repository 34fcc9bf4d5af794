"""Desktops in sandboxes behind a gateway. Invariant: a sandbox belongs to one lease and is deleted at its end; while its lease goes
on it is renewed, also while the episode is parked.

The machine in a sandbox runs OSWorld's server, reached through the gateway at its port 5000. Commands and files go by the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import httpx2
import structlog

from deskhand.desktop.base import CommandResult, DesktopSpec, Frame
from deskhand.desktop.pool import Lease
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop, ScreenPolling
from deskhand.desktop.remote.osworld_server import OsworldServer
from deskhand.desktop.remote.quota import QuotaGate, QuotaManager
from deskhand.desktop.remote.quota_errors import QuotaExceeded, quota_signal_from_error
from deskhand.desktop.remote.retrying_client import RemoteTimeouts, RetryingClient
from deskhand.desktop.remote.sandbox_api import (
    OSWORLD_PORT,
    Sandbox,
    SandboxApi,
    connect_sandbox_api,
    endpoint_of,
    wait_ready,
)
from deskhand.errors import InfrastructureError

log = structlog.get_logger()
BEATS = 4
"""How often a sandbox is renewed within its time to live."""


class SandboxDesktop(OsworldDesktop):
    """A sandbox's desktop. A reset after it was used takes a new sandbox."""

    def __init__(self, pool: SandboxPool, sandbox: Sandbox) -> None:
        self._pool, self.sandbox = pool, sandbox
        self._used = False
        self.and_then: Callable[[], Awaitable[None]] | None = None
        """What is to be closed after it."""
        super().__init__(pool.link_to(sandbox), revert=self._fresh, looking=pool.looking, ready_s=pool.boot_s)

    async def _fresh(self) -> None:
        if self._used:
            await self._pool.delete(self.sandbox)  # first, since the quota may have no room for two
            self.sandbox = await self._pool.create(self._template)
            await self.link.close()
            self.link = self._pool.link_to(self.sandbox)
            self._server = OsworldServer(self.link)
        self._used = False

    @property
    def server(self) -> OsworldServer:
        self._used = True
        return super().server

    async def reset(self, template: DesktopSpec) -> Frame:
        self._template = template
        return await super().reset(template)

    async def _marked(self, body: str, longest_s: float) -> str:
        self._used = True
        return await super()._marked(body, longest_s)

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        self._check_open()
        self._used, self._untouched = True, None
        return await self._pool.gateway.exec(self.sandbox, argv, timeout_s=timeout_s, env=env, cwd=cwd)

    async def pull(self, path: str) -> bytes:
        self._check_open()
        return await self._pool.gateway.read(self.sandbox, path)

    async def push(self, path: str, data: bytes) -> None:
        self._check_open()
        self._used, self._untouched = True, None
        await self._pool.gateway.write(self.sandbox, path, data)

    async def close(self) -> None:
        await super().close()
        then, self.and_then = self.and_then, None
        if then is not None:
            await then()


class SandboxPool:
    """Leases of the gateway at `endpoint` (None: as the environment says), as `DesktopPool` gives them.

    `image` is what the gateway calls the machine to start; `boot_s` how long it may take; `ttl_s` how long a sandbox lives that is
    not renewed. `gateway` takes the place of the one that the endpoint names. Raises `ConfigError`.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | None = None,
        *,
        template: DesktopSpec | None = None,
        image: str | None = None,
        boot_s: float = 300.0,
        ttl_s: float = 120.0,
        timeouts: RemoteTimeouts | None = None,
        looking: ScreenPolling | None = None,
        lot: QuotaManager | None = None,
        gateway: SandboxApi | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        if endpoint is None:
            endpoint, token = endpoint_of()
        self.template = template or DesktopSpec()
        self.lot = lot or QuotaManager()
        self.timeouts, self.looking, self.boot_s, self.ttl_s = timeouts, looking, boot_s, ttl_s
        self.gateway = gateway or connect_sandbox_api(endpoint, token, timeouts=timeouts, lot=self.lot)
        self.gate: QuotaGate = self.lot.gate(endpoint, token)
        self.episode_s = (timeouts or RemoteTimeouts()).episode_s
        self._image = image
        self._transport = transport
        self._epochs = itertools.count(1)
        self._held: dict[int, tuple[SandboxDesktop, asyncio.Task[None]]] = {}
        self._created: set[str] = set()

    async def __aenter__(self) -> SandboxPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def link_to(self, sandbox: Sandbox) -> RetryingClient:
        """A link to the in-VM server of a sandbox."""
        port = self.gateway.port(sandbox, OSWORLD_PORT)
        return RetryingClient(
            port.address, port.token, timeouts=self.timeouts, gate=self.gate, lot=self.lot, transport=self._transport
        )

    async def create(self, template: DesktopSpec) -> Sandbox:
        """A sandbox that is ready. Waits while the gateway has none; one that does not get ready is deleted again."""
        request_id = secrets.token_hex(16)

        async def attempt() -> Sandbox:
            try:
                return await self.gateway.create(
                    image=self._image,
                    width=template.width,
                    height=template.height,
                    ttl_s=self.ttl_s,
                    request_id=request_id,
                )
            except QuotaExceeded:
                raise
            except Exception as error:
                capacity = quota_signal_from_error(error, self.lot.clock.wall())
                if capacity is None:
                    raise
                raise QuotaExceeded(capacity, "creating a sandbox") from error

        created = await self._admitted(attempt)
        self._created.add(created.id)
        try:
            return await wait_ready(self.gateway, created, self.boot_s)
        except BaseException:
            await asyncio.shield(self.delete(created))
            raise

    async def _admitted(self, attempt: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
        own = getattr(self.gateway, "link", None)
        if own is not None and own.gate is self.gate:  # it parks by itself, at the same gate
            return await attempt()
        return await self.gate.desktops.run(attempt)

    async def delete(self, sandbox: Sandbox) -> None:
        """End a sandbox; what cannot be ended now ends by itself. A second time does nothing."""
        if sandbox.id not in self._created:
            return
        self._created.discard(sandbox.id)
        try:
            with contextlib.suppress(InfrastructureError):
                await self.gateway.delete(sandbox)
        finally:
            self.gate.desktops.released()

    async def lease(self, template: DesktopSpec | None = None) -> Lease:
        """A fresh desktop in the state `template` (default: the pool's)."""
        wanted = template or self.template
        sandbox = await self.create(wanted)
        desktop = SandboxDesktop(self, sandbox)
        epoch = next(self._epochs)
        self._held[epoch] = desktop, asyncio.create_task(self._renew(desktop))
        try:
            await desktop.reset(wanted)
        except BaseException:
            await asyncio.shield(self._end(epoch))
            raise
        return Lease(desktop, epoch)

    def held(self, epoch: int) -> SandboxDesktop:
        """The desktop of a lease that goes on."""
        return self._held[epoch][0]

    async def _renew(self, desktop: SandboxDesktop) -> None:
        """Each sandbox by itself: one whose machine is away must not cost the others their time."""
        while True:
            await asyncio.sleep(self.ttl_s / BEATS)
            try:
                async with asyncio.timeout(self.ttl_s / 2):
                    await self.gateway.renew(desktop.sandbox, self.ttl_s)
            except Exception as error:  # also of a vendor's SDK; the next call of the episode says what is wrong
                log.info("gateway.not_renewed", sandbox=desktop.sandbox.id, error=type(error).__name__)

    async def release(self, lease: Lease) -> None:
        """Give a lease back. A second release of the same lease does nothing."""
        await self._end(lease.epoch)

    async def _end(self, epoch: int) -> None:
        found = self._held.pop(epoch, None)
        if found is not None:
            desktop, renewing = found
            renewing.cancel()
            await desktop.close()
            await self.delete(desktop.sandbox)

    async def close(self) -> None:
        """Give all leases back. Idempotent."""
        await asyncio.gather(*(self._end(epoch) for epoch in list(self._held)))
        await self.gateway.close()


async def sandbox_desktop(endpoint: str | None = None, token: str | None = None, **settings: Any) -> SandboxDesktop:
    """One desktop in a sandbox of its own, which ends when the desktop is closed; `settings` are those of `GatewayPool`.

    For what has one desktop: `DesktopEnv(desktop=sandbox_desktop)` (`deskhand.integrations.desktop_env.env`) reads endpoint and token from
    the environment.
    """
    pool = SandboxPool(endpoint, token, **settings)
    try:
        desktop = pool.held((await pool.lease()).epoch)
    except BaseException:
        await pool.close()
        raise
    desktop.and_then = pool.close
    return desktop
