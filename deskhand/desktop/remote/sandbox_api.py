"""Clusters of sandboxes behind an HTTPS gateway, whoever's they are. Invariant: a sandbox that nobody renews ends by itself, so one
that is lost costs its `ttl_s` and no more.

`SandboxGateway` is what Deskhand asks of a provider; `gateway.openapi.yaml` beside this file is the same over HTTP, which
`HttpGateway` speaks and `deskhand gateway` serves. A vendor's SDK joins by an entry point of the group `deskhand.sandbox_providers`, a
function `(endpoint, token) -> SandboxGateway` that is imported only when an endpoint `name:...` asks for it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol
from urllib.parse import quote

import httpx2

from deskhand import pausable_timeout
from deskhand.desktop.base import CommandResult
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.retrying_client import RemoteTimeouts, RetryingClient
from deskhand.errors import ConfigError, InfrastructureError

ENDPOINT, TOKEN = "OSWORLD_SANDBOX_ENDPOINT", "OSWORLD_SANDBOX_TOKEN"
ENTRY_POINTS = "deskhand.sandbox_providers"
OSWORLD_PORT = 5000
REQUEST_ID = "x-request-id"


@dataclass(frozen=True)
class Sandbox:
    """A sandbox that was created. `state` is "creating", "ready", "failed" or "deleted"; `key` opens this sandbox alone ("": the
    gateway has no such keys)."""

    id: str
    state: str
    ttl_s: float
    key: str = ""
    message: str = ""


@dataclass(frozen=True)
class GuestPort:
    """Where a port of the guest is reached: an address, and what requests must show."""

    address: str
    token: str | None


class SandboxApi(Protocol):
    """A provider of sandboxes. All methods raise `InfrastructureError`; a refusal for want of room is `capacity.AtCapacity`, or any
    error that `capacity.capacity_of_error` knows."""

    async def create(self, *, image: str | None, width: int, height: int, ttl_s: float, request_id: str) -> Sandbox:
        """A sandbox, perhaps not ready yet. The same `request_id` again is the same sandbox."""
        ...

    async def get(self, sandbox: Sandbox) -> Sandbox:
        """The sandbox as it is now."""
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
        """Run a command in it, once."""
        ...

    async def read(self, sandbox: Sandbox, path: str) -> bytes:
        """A file of it. Raises `FileNotFoundError`."""
        ...

    async def write(self, sandbox: Sandbox, path: str, data: bytes) -> None:
        """Write a file, creating folders."""
        ...

    def port(self, sandbox: Sandbox, port: int) -> GuestPort:
        """Where a port of the guest is reached."""
        ...

    async def renew(self, sandbox: Sandbox, ttl_s: float) -> None:
        """It is still wanted for so long."""
        ...

    async def delete(self, sandbox: Sandbox) -> None:
        """End it; one that is gone is no error."""
        ...

    async def close(self) -> None:
        """Idempotent. Sandboxes go on."""
        ...


class HttpSandboxApi:
    """Fulfils `SandboxGateway` at `endpoint`, showing `token`. Raises `ConfigError` for an endpoint that is no address."""

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        *,
        timeouts: RemoteTimeouts | None = None,
        lot: QuotaManager | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.link = RetryingClient(endpoint, token, timeouts=timeouts, lot=lot, transport=transport)
        self._token = token

    async def create(self, *, image: str | None, width: int, height: int, ttl_s: float, request_id: str) -> Sandbox:
        body = {"image": image, "width": width, "height": height, "ttl_s": ttl_s}
        reply = await self._send(
            "POST", "/v1/sandboxes", acquires=True, request_id=request_id, may_take_s=60.0, json=body
        )
        return self._sandbox(reply)

    async def get(self, sandbox: Sandbox) -> Sandbox:
        return self._sandbox(await self._send("GET", f"/v1/sandboxes/{quote(sandbox.id, safe='')}"), sandbox.key)

    async def exec(
        self,
        sandbox: Sandbox,
        argv: list[str],
        *,
        timeout_s: float,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        body = {"argv": argv, "timeout_s": timeout_s, "env": env, "cwd": cwd}
        told = {"acts": True, "request_id": secrets.token_hex(16), "may_take_s": timeout_s}
        reply = await self._send("POST", self._path(sandbox, "exec"), json=body, **told)
        try:
            said = reply.json()
            return CommandResult(
                int(said["returncode"]), base64.b64decode(said["stdout"]), base64.b64decode(said["stderr"])
            )
        except (ValueError, KeyError, TypeError):
            raise InfrastructureError(f"{self.link.address}: exec gave no result") from None

    async def read(self, sandbox: Sandbox, path: str) -> bytes:
        return (await self._send("GET", self._path(sandbox, "files"), about=path, params={"path": path})).content

    async def write(self, sandbox: Sandbox, path: str, data: bytes) -> None:
        await self._send(
            "PUT", self._path(sandbox, "files"), about=path, params={"path": path}, content=data, may_take_s=60.0
        )

    def port(self, sandbox: Sandbox, port: int) -> GuestPort:
        return GuestPort(f"{self.link.address}{self._path(sandbox, f'ports/{port}')}", sandbox.key or self._token)

    async def renew(self, sandbox: Sandbox, ttl_s: float) -> None:
        await self._send("POST", self._path(sandbox, "renew"), parks=False, json={"ttl_s": ttl_s})

    async def delete(self, sandbox: Sandbox) -> None:
        await self._send("DELETE", f"/v1/sandboxes/{quote(sandbox.id, safe='')}", parks=False, gone_is_fine=True)

    async def close(self) -> None:
        await self.link.close()

    def _path(self, sandbox: Sandbox, rest: str) -> str:
        return f"/v1/sandboxes/{quote(sandbox.id, safe='')}/{rest}"

    async def _send(
        self,
        method: str,
        path: str,
        *,
        about: str = "",
        acts: bool = False,
        acquires: bool = False,
        parks: bool = True,
        gone_is_fine: bool = False,
        request_id: str = "",
        may_take_s: float = 0.0,
        **arguments: Any,
    ) -> httpx2.Response:
        def refused(reply: httpx2.Response) -> Exception | None:
            if reply.status_code < 400 or (gone_is_fine and reply.status_code in (404, 410)):
                return None
            if reply.status_code == 404 and about:
                return FileNotFoundError(2, "no such file", about)
            try:
                said = str(reply.json().get("error", ""))
            except (ValueError, AttributeError):
                said = ""
            kind = ConfigError if acquires and reply.status_code in (400, 401, 403) else InfrastructureError
            return kind(f"{method} {self.link.address}{path}: {reply.status_code} {said[:300]}".rstrip())

        headers = {REQUEST_ID: request_id} if request_id else {}
        return await self.link.send(
            method, path, repeatable=not acts or bool(request_id), acts=acts, acquires=acquires, parks=parks,
            may_take_s=may_take_s, headers=headers, refused=refused, **arguments,
        )  # fmt: skip

    def _sandbox(self, reply: httpx2.Response, key: str = "") -> Sandbox:
        try:
            said = reply.json()
            return Sandbox(
                str(said["id"]),
                str(said["state"]),
                float(said["ttl_s"]),
                str(said.get("key") or key),
                str(said.get("message") or ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InfrastructureError(f"{self.link.address}: the gateway's reply tells of no sandbox") from None


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
