"""HTTP client of servers that lease desktops.

Subclassed for desktop servers (`server_desktop`) and sandbox gateways (`sandbox_api`), which differ in paths, the
request-id header and how a desktop is requested.

Invariant: every request may be retried. One that acts carries an id, so that the server performs it once. Only replies
of the protocol's shape count; any other is a proxy's.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import httpx2

from deskhand.desktop import frame_codec
from deskhand.desktop.base import CommandResult
from deskhand.desktop.remote.replies import (
    CommandReply,
    ForeignReply,
    SandboxReply,
    describe,
    error_object,
    json_object,
    json_reply,
)
from deskhand.desktop.remote.retrying_client import Parse, RetryingClient
from deskhand.errors import ConfigError, InfrastructureError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Sandbox:
    """A leased desktop. `state` is "creating", "ready", "failed" or "deleted".

    `key` opens only this desktop ("" if there are no such keys). `epoch` increases with every lease (0: not counted).
    `size` is the screen size, if the server reports it.
    """

    id: str
    state: str
    ttl_s: float
    key: str = ""
    message: str = ""
    epoch: int = 0
    size: tuple[int, int] = (0, 0)
    backend: str = "local"
    """What a desktop server leases: "local" desktops, or "osworld" or "waa" machines."""


class HttpTransport:
    """Requests over `client`. Each desktop has a path below `root`; commands and files are below that."""

    root: ClassVar[str]
    command_path: ClassVar[str]
    file_path: ClassVar[str]
    id_header: ClassVar[str]
    reports_as_text: ClassVar[bool] = False
    """Whether a 404 without a code may mean a missing file; else it is a proxy's."""

    def __init__(self, client: RetryingClient) -> None:
        self.client = client

    def path_of(self, sandbox: Sandbox) -> str:
        return f"{self.root}/{quote(sandbox.id, safe='')}"

    def client_for(self, sandbox: Sandbox) -> RetryingClient:
        """Return the client for requests about a desktop."""
        return self.client

    async def acquire(self, body: dict[str, Any], request_id: str, may_take_s: float) -> Sandbox:
        """Request a desktop. Raises `ConfigError` if the request can never be granted."""
        arguments = {"acquires": True, "request_id": request_id, "may_take_s": may_take_s, "json": body}
        return await self.send("POST", "", parse=sandbox_of, **arguments)

    async def renew(self, sandbox: Sandbox, ttl_s: float) -> None:
        await self.send("POST", "/renew", sandbox, wait_for_quota=False, json={"ttl_s": ttl_s})

    async def delete(self, sandbox: Sandbox) -> None:
        await self.send("DELETE", "", sandbox, wait_for_quota=False, ignore_missing=True)

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
        arguments = {"acts": True, "may_take_s": timeout_s, "json": body}
        done = await self.send_for(CommandReply, "POST", self.command_path, sandbox, **arguments)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    async def read(self, sandbox: Sandbox, path: str) -> bytes:
        return await self.send("GET", self.file_path, sandbox, parse=_bytes_of, file=path, params={"path": path})

    async def write(self, sandbox: Sandbox, path: str, data: bytes) -> None:
        await self.send("PUT", self.file_path, sandbox, file=path, may_take_s=60.0, params={"path": path}, content=data)

    async def close(self) -> None:
        await self.client.close()

    async def send_for(self, kind: type[Result], *request: Any, **arguments: Any) -> Result:
        """Return the JSON that the server replies, as `kind`; see `send`."""
        return await self.send(*request, parse=lambda reply: json_reply(reply, kind), **arguments)

    async def send(
        self,
        method: str,
        path: str,
        sandbox: Sandbox | None = None,
        *,
        parse: Parse[Any] = json_object,
        acts: bool = False,
        acquires: bool = False,
        ignore_missing: bool = False,
        request_id: str = "",
        file: str = "",
        **arguments: Any,
    ) -> Any:
        """Return what `parse` returns for the reply to a request about a desktop, or for one (None).

        Raises the error that the server reports, and `DeliveryUnknown` if a request that acts gets no reply.
        """
        client = self.client if sandbox is None else self.client_for(sandbox)
        path = (self.root if sandbox is None else self.path_of(sandbox)) + path
        if acts or request_id:
            arguments["headers"] = arguments.get("headers", {}) | {self.id_header: request_id or secrets.token_hex(16)}

        refused_by_proxy: list[int] = []

        def parse_reply(reply: httpx2.Response) -> Any:
            status, about = reply.status_code, f"{method} {client.base_url}{path}"
            if status in (200, 201):
                return parse(reply)
            if status < 400:
                raise ForeignReply(describe(reply))
            refused_by_proxy[:] = [status] if status in (401, 403, 407) else []
            body = error_object(reply)
            if ignore_missing and status in (404, 410):
                return None
            if acquires and status in (400, 401, 403):
                raise ConfigError(f"{about}: {status} {body['error']}")
            if status == 404 and file and self.reports_as_text and body["error"] not in frame_codec.ERRORS:
                raise FileNotFoundError(2, "no such file", file)
            raise frame_codec.error_from_reply(body, status, about)

        try:
            return await client.send(
                method, path, repeatable=True, acts=acts, acquires=acquires, parse=parse_reply, **arguments
            )
        except InfrastructureError as error:
            if acquires and refused_by_proxy:  # the last attempt, too, was refused for its credentials
                raise ConfigError(f"{error}; check the URL, the API key and the proxies in between") from error
            raise


def sandbox_of(reply: httpx2.Response, key: str = "") -> Sandbox:
    """Return the sandbox or lease in a reply. Raises `ForeignReply`."""
    found = json_reply(reply, SandboxReply)
    size = found.width, found.height
    named = (found.id, found.state, found.ttl_s, found.key or key, found.message or "", found.epoch)
    return Sandbox(*named, size, found.backend)


def _bytes_of(reply: httpx2.Response) -> bytes:
    """Return the content of a file. Raises `ForeignReply` for anything else, such as a login page."""
    if not reply.headers.get("content-type", "").startswith("application/octet-stream"):
        raise ForeignReply(describe(reply))
    return reply.content
