"""What is asked of whoever lends desktops. Invariant: every request may be sent again: one that acts carries an id, by
which the other side carries it out once.

`LeaseTransport` is the one protocol of clients; `HttpTransport` is it over HTTP, for bridges (`desktop.bridge`) and for
sandbox gateways (`sandboxes`), which differ in their paths, their header for ids, and how a desktop is asked for.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

import httpx2

from deskhand.desktop import frame_codec
from deskhand.desktop.base import CommandResult
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import ConfigError, InfrastructureError


@dataclass(frozen=True)
class Sandbox:
    """A desktop that was lent. `state` is "creating", "ready", "failed" or "deleted"; `key` opens this one alone ("": there are no
    such keys); `epoch` rises with every lease (0: nobody counts); `size` is that of its screen, where it is told."""

    id: str
    state: str
    ttl_s: float
    key: str = ""
    message: str = ""
    epoch: int = 0
    size: tuple[int, int] = (0, 0)


class LeaseTransport(Protocol):
    """All methods raise `InfrastructureError`; a refusal for want of room is `capacity.AtCapacity`, or any error that
    `capacity.capacity_of_error` knows."""

    async def renew(self, sandbox: Sandbox, ttl_s: float) -> None:
        """It is still wanted for so long."""
        ...

    async def delete(self, sandbox: Sandbox) -> None:
        """End it; one that is gone is no error."""
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

    async def close(self) -> None:
        """Idempotent. What was lent goes on."""
        ...


class HttpTransport:
    """Fulfills `LeaseTransport` over `link`: each desktop has a path below `root`, its commands and files have theirs
    below that."""

    root: ClassVar[str]
    command_path: ClassVar[str]
    file_path: ClassVar[str]
    id_header: ClassVar[str]

    def __init__(self, link: RetryingClient) -> None:
        self.link = link

    def path_of(self, sandbox: Sandbox) -> str:
        return f"{self.root}/{quote(sandbox.id, safe='')}"

    def link_to(self, sandbox: Sandbox) -> RetryingClient:
        """By which requests about a desktop go."""
        return self.link

    async def acquire(self, body: dict[str, Any], request_id: str, may_take_s: float) -> Sandbox:
        """What is lent to a request for a desktop. Raises `ConfigError` for one that can never be fulfilled."""
        reply = await self.send("POST", "", acquires=True, request_id=request_id, may_take_s=may_take_s, json=body)
        try:
            return self.sandbox_of(reply)
        except InfrastructureError:
            self.link.gate.desktops.released()  # nobody could end it: nothing is held
            raise

    async def renew(self, sandbox: Sandbox, ttl_s: float) -> None:
        await self.send("POST", "/renew", sandbox, parks=False, json={"ttl_s": ttl_s})

    async def delete(self, sandbox: Sandbox) -> None:
        await self.send("DELETE", "", sandbox, parks=False, gone_is_fine=True)

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
        said = object_of(
            await self.send("POST", self.command_path, sandbox, acts=True, may_take_s=timeout_s, json=body)
        )
        try:
            return CommandResult(
                int(said["returncode"]), base64.b64decode(said["stdout"]), base64.b64decode(said["stderr"])
            )
        except (ValueError, KeyError, TypeError):
            raise InfrastructureError(f"{self.link.address}: a command gave no result") from None

    async def read(self, sandbox: Sandbox, path: str) -> bytes:
        return (await self.send("GET", self.file_path, sandbox, file=path, params={"path": path})).content

    async def write(self, sandbox: Sandbox, path: str, data: bytes) -> None:
        await self.send("PUT", self.file_path, sandbox, file=path, may_take_s=60.0, params={"path": path}, content=data)

    async def close(self) -> None:
        await self.link.close()

    async def send(
        self,
        method: str,
        path: str,
        sandbox: Sandbox | None = None,
        *,
        acts: bool = False,
        acquires: bool = False,
        gone_is_fine: bool = False,
        request_id: str = "",
        file: str = "",
        **arguments: Any,
    ) -> httpx2.Response:
        """The reply to a request about a desktop, or (None) for one. Raises what the other side tells of, and
        `DeliveryUnknown` when no answer to one that acts comes at all."""
        link = self.link if sandbox is None else self.link_to(sandbox)
        path = (self.root if sandbox is None else self.path_of(sandbox)) + path
        if acts or request_id:
            arguments["headers"] = arguments.get("headers", {}) | {self.id_header: request_id or secrets.token_hex(16)}

        def refused(reply: httpx2.Response) -> Exception | None:
            status = reply.status_code
            if status < 400 or (gone_is_fine and status in (404, 410)):
                return None
            said, about = object_of(reply), f"{method} {link.address}{path}"
            if acquires and status in (400, 401, 403):
                return ConfigError(f"{about}: {status} {said.get('error', '')}")
            if status == 404 and file and said.get("error") not in frame_codec.ERRORS:
                return FileNotFoundError(2, "no such file", file)
            return frame_codec.error_from_reply(said, status, about)

        return await link.send(
            method, path, repeatable=True, acts=acts, acquires=acquires, refused=refused, **arguments
        )

    def sandbox_of(self, reply: httpx2.Response, key: str = "") -> Sandbox:
        """What a reply says was lent: a sandbox, or a bridge's lease. Raises `InfrastructureError`."""
        said = object_of(reply)
        try:
            name, ttl_s = (said["lease"], said["idle_s"]) if "lease" in said else (said["id"], said["ttl_s"])
            size = int(said.get("width", 0)), int(said.get("height", 0))
            key, message = str(said.get("key") or key), str(said.get("message") or "")
            state, epoch = str(said.get("state", "ready")), int(said.get("epoch", 0))
            return Sandbox(str(name), state, float(ttl_s), key, message, epoch, size)
        except (ValueError, KeyError, TypeError):
            raise InfrastructureError(f"{self.link.address}: the reply tells of no desktop") from None


def object_of(reply: httpx2.Response) -> dict[str, Any]:
    """The JSON object of a reply; an empty one when it has none."""
    try:
        body = reply.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
