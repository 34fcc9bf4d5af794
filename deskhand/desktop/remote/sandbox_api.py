"""Protocol of sandbox providers, and its HTTP implementation.

`sandbox_api.openapi.yaml` describes the HTTP API, which `HttpSandboxApi` calls and `deskhand serve sandboxes` serves.
A vendor's SDK is added by an entry point of the group `deskhand.sandbox_providers`: a function `(endpoint, token) ->
SandboxApi`, imported only for endpoints `name:...`. A sandbox that is not renewed expires after its `ttl_s`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol

import httpx2

from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import CommandResult
from deskhand.desktop.frame_codec import RemoteLeaseExpired
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.transport import HttpTransport, Sandbox, sandbox_of
from deskhand.errors import ConfigError

ENDPOINT, TOKEN = "OSWORLD_SANDBOX_ENDPOINT", "OSWORLD_SANDBOX_TOKEN"
ENTRY_POINTS = "deskhand.sandbox_providers"
OSWORLD_PORT = 5000
REQUEST_ID = "x-request-id"


@dataclass(frozen=True)
class GuestPort:
    """URL and token for a port of the guest."""

    url: str
    token: str | None


class SandboxApi(Protocol):
    """A provider of sandboxes.

    Methods raise `InfrastructureError`; a quota refusal is `QuotaExceeded`, or any error that
    `quota_signal_from_error` recognizes.
    """

    async def create(self, *, image: str | None, width: int, height: int, ttl_s: float, request_id: str) -> Sandbox:
        """Create a sandbox, possibly not ready yet. A repeated `request_id` returns the same sandbox."""
        ...

    async def get(self, sandbox: Sandbox) -> Sandbox:
        """Return the current state of a sandbox."""
        ...

    def port(self, sandbox: Sandbox, port: int) -> GuestPort:
        """Return how to reach a port of the guest."""
        ...

    async def renew(self, sandbox: Sandbox, ttl_s: float) -> None:
        """Extend the life of a sandbox by `ttl_s`."""
        ...

    async def delete(self, sandbox: Sandbox) -> None:
        """Delete a sandbox; ignored if it no longer exists."""
        ...

    async def exec(
        self,
        sandbox: Sandbox,
        argv: list[str],
        *,
        timeout_s: float,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        """Run a command once."""
        ...

    async def read(self, sandbox: Sandbox, path: str) -> bytes:
        """Return a file. Raises `FileNotFoundError`."""
        ...

    async def write(self, sandbox: Sandbox, path: str, data: bytes) -> None:
        """Write a file and create its directories."""
        ...

    async def close(self) -> None:
        """Close connections; sandboxes continue. Idempotent."""
        ...


class HttpSandboxApi(HttpTransport):
    """Implements `SandboxApi` at `endpoint` with `token`. Raises `ConfigError` for an invalid URL."""

    root, command_path, file_path, id_header = "/v1/sandboxes", "/exec", "/files", REQUEST_ID
    reports_as_text = True

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        *,
        timeouts: RemoteTimeouts | None = None,
        quota: QuotaManager | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(RetryingClient(endpoint, token, timeouts=timeouts, quota=quota, transport=transport))
        self._token = token

    async def create(self, *, image: str | None, width: int, height: int, ttl_s: float, request_id: str) -> Sandbox:
        body = {"image": image, "width": width, "height": height, "ttl_s": ttl_s}
        return await self.acquire(body, request_id, may_take_s=60.0)

    async def send(self, method: str, path: str, sandbox: Sandbox | None = None, **arguments: Any) -> Any:
        """See `HttpTransport.send`. A file or program counts as missing only if the sandbox exists: providers send 404
        for one that they have lost, too.
        """
        try:
            return await super().send(method, path, sandbox, **arguments)
        except FileNotFoundError:
            if sandbox is None or not path:
                raise RemoteLeaseExpired(f"{self.client.base_url}: there is no such sandbox") from None
            found = await self.get(sandbox)
            if found.state != "ready":
                raise RemoteLeaseExpired(f"sandbox {sandbox.id}: {found.state} {found.message}".rstrip()) from None
            raise

    async def get(self, sandbox: Sandbox) -> Sandbox:
        return await self.send("GET", "", sandbox, parse=lambda reply: sandbox_of(reply, sandbox.key))

    def port(self, sandbox: Sandbox, port: int) -> GuestPort:
        return GuestPort(f"{self.client.base_url}{self.path_of(sandbox)}/ports/{port}", sandbox.key or self._token)


def connect_sandbox_api(
    endpoint: str, token: str | None, *, timeouts: RemoteTimeouts | None = None, quota: QuotaManager | None = None
) -> SandboxApi:
    """Return the API at a URL, or of the provider in `name:...`. Raises `ConfigError`."""
    name, _, rest = endpoint.partition(":")
    if name in ("http", "https"):
        return HttpSandboxApi(endpoint, token, timeouts=timeouts, quota=quota)
    known = {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINTS)}
    if name not in known:
        installed = f"; installed providers: {', '.join(sorted(known))}" if known else ""
        raise ConfigError(f"sandbox endpoint: must start with https:// or <provider>:{installed}")
    make: Callable[[str, str | None], SandboxApi] = known[name].load()
    return make(rest, token)


def endpoint_of(environment: Mapping[str, str] = os.environ) -> tuple[str, str | None]:
    """Return endpoint and token from `OSWORLD_SANDBOX_ENDPOINT` and `OSWORLD_SANDBOX_TOKEN`. Raises `ConfigError`."""
    endpoint = environment.get(ENDPOINT, "").strip()
    if not endpoint:
        raise ConfigError(f"{ENDPOINT} is not set; set it to the URL of the sandbox gateway")
    return endpoint, environment.get(TOKEN) or None
