"""Desktops in sandboxes of a provider (`sandbox_api`).

Opened by `desktop.factory` for the sandbox backend, or one at a time by `sandbox_desktop`. The sandbox runs OSWorld's
server at guest port 5000; commands and files go through the sandbox API. A sandbox belongs to one lease and is
deleted with it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from deskhand import pausable_timeout
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame, Lease
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.osworld_server import OsworldServer
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.quota_errors import QuotaExceeded, quota_signal_from_error
from deskhand.desktop.remote.remote_pool import RemotePool
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.sandbox_api import OSWORLD_PORT, Sandbox, SandboxApi, connect_sandbox_api, endpoint_of
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.desktop.remote.waa_server import EVALUATOR_PORT
from deskhand.errors import InfrastructureError


class SandboxDesktop(OsworldDesktop):
    """The desktop of a sandbox. Resetting a used one creates a new sandbox."""

    def __init__(self, pool: SandboxPool, sandbox: Sandbox) -> None:
        self._pool, self.sandbox = pool, sandbox
        self._used = False
        self.on_close: Callable[[], Awaitable[None]] | None = None
        """Called after the desktop is closed."""
        super().__init__(
            pool.client_for(sandbox), reset_hook=self._renew_sandbox, polling=pool.polling, ready_s=pool.boot_s
        )

    async def _renew_sandbox(self) -> None:
        if self._used:
            await self._pool.delete(self.sandbox)  # first: the quota may not allow two
            self.sandbox = await self._pool.create(self._spec)
            await self.client.close()
            self.client = self._pool.client_for(self.sandbox)
            self._server = OsworldServer(self.client)
        self._used = False

    @property
    def server(self) -> OsworldServer:
        self._used = True
        return super().server

    async def reset(self, spec: DesktopSpec) -> Frame:
        self._spec = spec
        frame = await super().reset(spec)
        self.system = "windows" if await self._server.platform() == "Windows" else "linux"
        return frame

    async def _run_marked(self, body: str, timeout_s: float) -> str:
        self._used = True
        return await super()._run_marked(body, timeout_s)

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        self._check_open()
        self._used, self._pristine = True, None
        return await self._pool.api.exec(self.sandbox, argv, timeout_s=timeout_s, env=env, cwd=cwd)

    def open_evaluator(self, port: int | None = None) -> RetryingClient:
        """See `HasTaskEvaluator`: a port of the sandbox, which the gateway forwards."""
        return self._pool.client_for(self.sandbox, port or EVALUATOR_PORT)

    async def pull(self, path: str) -> bytes:
        self._check_open()
        return await self._pool.api.read(self.sandbox, path)

    async def push(self, path: str, data: bytes) -> None:
        self._check_open()
        self._used, self._pristine = True, None
        await self._pool.api.write(self.sandbox, path, data)

    async def close(self) -> None:
        await super().close()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            await on_close()


class SandboxPool(RemotePool):
    """Leases desktops from the sandbox API at `endpoint` (None: from the environment). Raises `ConfigError`.

    Args:
        image: The provider's name of the machine image.
        boot_s: Maximum time until a sandbox is ready.
        ttl_s: Time to live of an unrenewed sandbox.
        api: Replaces the API at `endpoint`.
    """

    def __init__(  # noqa: PLR0913
        self,
        endpoint: str | None = None,
        token: str | None = None,
        *,
        spec: DesktopSpec | None = None,
        image: str | None = None,
        boot_s: float = 300.0,
        ttl_s: float = 120.0,
        timeouts: RemoteTimeouts | None = None,
        polling: ScreenPolling | None = None,
        quota: QuotaManager | None = None,
        api: SandboxApi | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        if endpoint is None:
            endpoint, token = endpoint_of()
        quota = quota or QuotaManager()
        self.api = api or connect_sandbox_api(endpoint, token, timeouts=timeouts, quota=quota)
        super().__init__(self.api, quota.gate(endpoint, token), quota, spec=spec, timeouts=timeouts, ttl_s=ttl_s)
        self.timeouts, self.polling, self.boot_s = timeouts, polling, boot_s
        self._image = image
        self._http_transport = transport

    def client_for(self, sandbox: Sandbox, port: int = OSWORLD_PORT) -> RetryingClient:
        """Return a client for a port of the sandbox: its in-VM server, or another one."""
        found = self.api.port(sandbox, port)
        shared: dict[str, Any] = {"timeouts": self.timeouts, "gate": self.gate, "quota": self.quota}
        return RetryingClient(found.url, found.token, transport=self._http_transport, **shared)

    async def create(self, spec: DesktopSpec) -> Sandbox:
        """Return a sandbox that is ready; one that does not become ready is deleted. Waits for quota."""
        request_id = secrets.token_hex(16)

        async def attempt() -> Sandbox:
            try:
                size = {"width": spec.width, "height": spec.height}
                return await self.api.create(image=self._image, **size, ttl_s=self.ttl_s, request_id=request_id)
            except QuotaExceeded:
                raise
            except Exception as error:
                capacity = quota_signal_from_error(error, self.quota.clock.wall())
                if capacity is None:
                    raise
                raise QuotaExceeded(capacity, "creating a sandbox") from error

        client = getattr(self.api, "client", None)
        waits_itself = client is not None and client.gate is self.gate
        created = await (attempt() if waits_itself else self.gate.desktops.run(attempt))
        self._created.add(created.id)
        try:
            return await self._wait_ready(created)
        except BaseException:
            await asyncio.shield(self.delete(created))
            raise

    async def _wait_ready(self, sandbox: Sandbox) -> Sandbox:
        try:
            async with pausable_timeout.pausable_timeout(self.boot_s):
                while sandbox.state != "ready":
                    if sandbox.state in ("failed", "deleted"):
                        raise InfrastructureError(f"sandbox {sandbox.id}: {sandbox.state}: {sandbox.message}")
                    await asyncio.sleep(0.5)
                    sandbox = await self.api.get(sandbox)
        except TimeoutError:
            raise InfrastructureError(f"sandbox {sandbox.id}: not ready within {self.boot_s:g} s") from None
        return sandbox

    async def _acquire(self, spec: DesktopSpec) -> SandboxDesktop:
        return SandboxDesktop(self, await self.create(spec))

    async def lease(self, spec: DesktopSpec | None = None) -> Lease:
        """Return a fresh desktop in the state `spec` (default: the pool's), renewed while it starts."""
        wanted = spec or self.spec
        lease = await super().lease(wanted)
        try:
            await lease.desktop.reset(wanted)
        except BaseException:
            await asyncio.shield(self.release(lease))
            raise
        return lease


async def sandbox_desktop(endpoint: str | None = None, token: str | None = None, **settings: Any) -> SandboxDesktop:
    """Return one desktop in its own sandbox, which is deleted when the desktop closes; `settings` are those of
    `SandboxPool`.

    Example: `DesktopEnv(desktop=sandbox_desktop)` reads endpoint and token from the environment.
    """
    pool = SandboxPool(endpoint, token, **settings)
    try:
        desktop = (await pool.lease()).desktop
    except BaseException:
        await pool.close()
        raise
    assert isinstance(desktop, SandboxDesktop)
    desktop.on_close = pool.close
    return desktop
