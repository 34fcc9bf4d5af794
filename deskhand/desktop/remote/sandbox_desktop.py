"""Desktops in sandboxes behind a gateway. Invariant: a sandbox belongs to one lease and is deleted at its end; while its lease goes
on it is renewed, also while the episode is parked.

The machine in a sandbox runs OSWorld's server, reached through the gateway at its port 5000. Commands and files go by the gateway.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame, Lease
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop, ScreenPolling
from deskhand.desktop.remote.osworld_server import OsworldServer
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.quota_errors import QuotaExceeded, quota_signal_from_error
from deskhand.desktop.remote.remote_pool import RemotePool
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.sandbox_api import (
    OSWORLD_PORT,
    Sandbox,
    SandboxApi,
    connect_sandbox_api,
    endpoint_of,
    wait_ready,
)


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


class SandboxPool(RemotePool):
    """Leases of the gateway at `endpoint` (None: as the environment says).

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
        lot = lot or QuotaManager()
        self.gateway = gateway or connect_sandbox_api(endpoint, token, timeouts=timeouts, lot=lot)
        super().__init__(
            self.gateway, lot.gate(endpoint, token), lot, template=template, timeouts=timeouts, ttl_s=ttl_s
        )
        self.timeouts, self.looking, self.boot_s = timeouts, looking, boot_s
        self._image = image
        self._http_transport = transport

    def link_to(self, sandbox: Sandbox) -> RetryingClient:
        """A link to the in-VM server of a sandbox."""
        port = self.gateway.port(sandbox, OSWORLD_PORT)
        return RetryingClient(
            port.address,
            port.token,
            timeouts=self.timeouts,
            gate=self.gate,
            lot=self.quota,
            transport=self._http_transport,
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
                capacity = quota_signal_from_error(error, self.quota.clock.wall())
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

    async def _taken(self, template: DesktopSpec) -> SandboxDesktop:
        return SandboxDesktop(self, await self.create(template))

    async def lease(self, template: DesktopSpec | None = None) -> Lease:
        """A fresh desktop in the state `template` (default: the pool's), renewed while it starts."""
        wanted = template or self.template
        lease = await super().lease(wanted)
        try:
            await lease.desktop.reset(wanted)
        except BaseException:
            await asyncio.shield(self.release(lease))
            raise
        return lease


async def sandbox_desktop(endpoint: str | None = None, token: str | None = None, **settings: Any) -> SandboxDesktop:
    """One desktop in a sandbox of its own, which ends when the desktop is closed; `settings` are those of `GatewayPool`.

    For what has one desktop: `DesktopEnv(desktop=sandbox_desktop)` (`deskhand.integrations.desktop_env.env`) reads endpoint and token from
    the environment.
    """
    pool = SandboxPool(endpoint, token, **settings)
    try:
        desktop = (await pool.lease()).desktop
    except BaseException:
        await pool.close()
        raise
    assert isinstance(desktop, SandboxDesktop)
    desktop.and_then = pool.close
    return desktop
