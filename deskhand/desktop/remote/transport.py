"""HTTP client of servers that lease desktops.

Subclassed for desktop servers (`server_desktop`) and sandbox gateways (`sandbox_api`), which differ in paths, the
request-id header and how a desktop is requested.

Invariant: every request may be retried. One that acts carries an id, so that the server performs it once.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import httpx2

from deskhand.desktop import frame_codec
from deskhand.desktop.base import CommandResult
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import ConfigError, InfrastructureError


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


class HttpTransport:
    """Requests over `client`. Each desktop has a path below `root`; commands and files are below that."""

    root: ClassVar[str]
    command_path: ClassVar[str]
    file_path: ClassVar[str]
    id_header: ClassVar[str]

    def __init__(self, client: RetryingClient) -> None:
        self.client = client

    def path_of(self, sandbox: Sandbox) -> str:
        return f"{self.root}/{quote(sandbox.id, safe='')}"

    def client_for(self, sandbox: Sandbox) -> RetryingClient:
        """Return the client for requests about a desktop."""
        return self.client

    async def acquire(self, body: dict[str, Any], request_id: str, may_take_s: float) -> Sandbox:
        """Request a desktop. Raises `ConfigError` if the request can never be granted."""
        reply = await self.send("POST", "", acquires=True, request_id=request_id, may_take_s=may_take_s, json=body)
        try:
            return self.sandbox_of(reply)
        except InfrastructureError:
            self.client.gate.desktops.released()  # an invalid reply holds no desktop
            raise

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
        reply = await self.send("POST", self.command_path, sandbox, acts=True, may_take_s=timeout_s, json=body)
        result = object_of(reply)
        try:
            stdout, stderr = base64.b64decode(result["stdout"]), base64.b64decode(result["stderr"])
            return CommandResult(int(result["returncode"]), stdout, stderr)
        except (ValueError, KeyError, TypeError):
            raise InfrastructureError(f"{self.client.base_url}: invalid command result") from None

    async def read(self, sandbox: Sandbox, path: str) -> bytes:
        return (await self.send("GET", self.file_path, sandbox, file=path, params={"path": path})).content

    async def write(self, sandbox: Sandbox, path: str, data: bytes) -> None:
        await self.send("PUT", self.file_path, sandbox, file=path, may_take_s=60.0, params={"path": path}, content=data)

    async def close(self) -> None:
        await self.client.close()

    async def send(
        self,
        method: str,
        path: str,
        sandbox: Sandbox | None = None,
        *,
        acts: bool = False,
        acquires: bool = False,
        ignore_missing: bool = False,
        request_id: str = "",
        file: str = "",
        **arguments: Any,
    ) -> httpx2.Response:
        """Return the reply to a request about a desktop, or for one (None).

        Raises the error that the server reports, and `DeliveryUnknown` if a request that acts gets no reply.
        """
        client = self.client if sandbox is None else self.client_for(sandbox)
        path = (self.root if sandbox is None else self.path_of(sandbox)) + path
        if acts or request_id:
            arguments["headers"] = arguments.get("headers", {}) | {self.id_header: request_id or secrets.token_hex(16)}

        def to_error(reply: httpx2.Response) -> Exception | None:
            status = reply.status_code
            if status < 400 or (ignore_missing and status in (404, 410)):
                return None
            body, about = object_of(reply), f"{method} {client.base_url}{path}"
            if acquires and status in (400, 401, 403):
                return ConfigError(f"{about}: {status} {body.get('error', '')}")
            if status == 404 and file and body.get("error") not in frame_codec.ERRORS:
                return FileNotFoundError(2, "no such file", file)
            return frame_codec.error_from_reply(body, status, about)

        return await client.send(
            method, path, repeatable=True, acts=acts, acquires=acquires, to_error=to_error, **arguments
        )

    def sandbox_of(self, reply: httpx2.Response, key: str = "") -> Sandbox:
        """Return the sandbox or lease in a reply. Raises `InfrastructureError`."""
        body = object_of(reply)
        try:
            id_, ttl_s = (body["lease"], body["idle_s"]) if "lease" in body else (body["id"], body["ttl_s"])
            size = int(body.get("width", 0)), int(body.get("height", 0))
            key, message = str(body.get("key") or key), str(body.get("message") or "")
            state, epoch = str(body.get("state", "ready")), int(body.get("epoch", 0))
            return Sandbox(str(id_), state, float(ttl_s), key, message, epoch, size)
        except (ValueError, KeyError, TypeError):
            raise InfrastructureError(f"{self.client.base_url}: the reply describes no desktop") from None


def object_of(reply: httpx2.Response) -> dict[str, Any]:
    """Return the JSON object of a reply, {} if there is none."""
    try:
        body = reply.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
