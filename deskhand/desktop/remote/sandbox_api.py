"""Clusters of sandboxes behind an HTTPS gateway, whoever's they are. Invariant: a sandbox that nobody renews ends by itself, so one
that is lost costs its `ttl_s` and no more.

`SandboxGateway` is what Deskhand asks of a provider; `gateway.openapi.yaml` beside this file is the same over HTTP, which
`HttpGateway` speaks and `deskhand gateway` serves. A vendor's SDK joins by an entry point of the group `deskhand.sandbox_providers`, a
function `(endpoint, token) -> SandboxGateway` that is imported only when an endpoint `name:...` asks for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Protocol

import httpx2

from deskhand import pausable_timeout
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.transport import HttpTransport, LeaseTransport, Sandbox
from deskhand.errors import ConfigError, InfrastructureError

ENDPOINT, TOKEN = "OSWORLD_SANDBOX_ENDPOINT", "OSWORLD_SANDBOX_TOKEN"
ENTRY_POINTS = "deskhand.sandbox_providers"
OSWORLD_PORT = 5000
REQUEST_ID = "x-request-id"


@dataclass(frozen=True)
class GuestPort:
    """Where a port of the guest is reached: an address, and what requests must show."""

    address: str
    token: str | None


class SandboxApi(LeaseTransport, Protocol):
    """A provider of sandboxes."""

    async def create(self, *, image: str | None, width: int, height: int, ttl_s: float, request_id: str) -> Sandbox:
        """A sandbox, perhaps not ready yet. The same `request_id` again is the same sandbox."""
        ...

    async def get(self, sandbox: Sandbox) -> Sandbox:
        """The sandbox as it is now."""
        ...

    def port(self, sandbox: Sandbox, port: int) -> GuestPort:
        """Where a port of the guest is reached."""
        ...


class HttpSandboxApi(HttpTransport):
    """Fulfills `SandboxGateway` at `endpoint`, showing `token`. Raises `ConfigError` for an endpoint that is no address."""

    root, command_path, file_path, id_header = "/v1/sandboxes", "/exec", "/files", REQUEST_ID

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        *,
        timeouts: RemoteTimeouts | None = None,
        lot: QuotaManager | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(RetryingClient(endpoint, token, timeouts=timeouts, lot=lot, transport=transport))
        self._token = token

    async def create(self, *, image: str | None, width: int, height: int, ttl_s: float, request_id: str) -> Sandbox:
        body = {"image": image, "width": width, "height": height, "ttl_s": ttl_s}
        return await self.acquire(body, request_id, may_take_s=60.0)

    async def get(self, sandbox: Sandbox) -> Sandbox:
        return self.sandbox_of(await self.send("GET", "", sandbox), sandbox.key)

    def port(self, sandbox: Sandbox, port: int) -> GuestPort:
        return GuestPort(f"{self.link.address}{self.path_of(sandbox)}/ports/{port}", sandbox.key or self._token)


async def wait_ready(gateway: SandboxApi, sandbox: Sandbox, timeout_s: float, pause_s: float = 0.5) -> Sandbox:
    """Raises `InfrastructureError` when it fails or is not ready in time."""
    try:
        async with pausable_timeout.pausable_timeout(timeout_s):
            while sandbox.state != "ready":
                if sandbox.state in ("failed", "deleted"):
                    raise InfrastructureError(f"sandbox {sandbox.id} is {sandbox.state}: {sandbox.message}")
                await asyncio.sleep(pause_s)
                sandbox = await gateway.get(sandbox)
    except TimeoutError:
        raise InfrastructureError(f"sandbox {sandbox.id} is not ready within {timeout_s:g} s") from None
    return sandbox


def connect_sandbox_api(
    endpoint: str, token: str | None, *, timeouts: RemoteTimeouts | None = None, lot: QuotaManager | None = None
) -> SandboxApi:
    """The gateway at an `https://...` endpoint, or by the adapter that `name:...` names. Raises `ConfigError`."""
    name, _, rest = endpoint.partition(":")
    if name in ("http", "https"):
        return HttpSandboxApi(endpoint, token, timeouts=timeouts, lot=lot)
    known = {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINTS)}
    if name not in known:
        has = f"; adapters that are installed: {', '.join(sorted(known))}" if known else ""
        raise ConfigError(f"the sandbox endpoint must begin with https:// or with an adapter's name and a colon{has}")
    make: Callable[[str, str | None], SandboxApi] = known[name].load()
    return make(rest, token)


def endpoint_of(environment: Mapping[str, str] = os.environ) -> tuple[str, str | None]:
    """Endpoint and token by `OSWORLD_SANDBOX_ENDPOINT` and `OSWORLD_SANDBOX_TOKEN`. Raises `ConfigError`."""
    endpoint = environment.get(ENDPOINT, "").strip()
    if not endpoint:
        raise ConfigError(f"{ENDPOINT} is not set; give the address of the sandbox gateway")
    return endpoint, environment.get(TOKEN) or None
