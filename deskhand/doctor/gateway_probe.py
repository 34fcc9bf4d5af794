"""Requests of the sandbox protocol to a gateway under test, for `check_gateway`.

`Gateway.ask` compares every reply with the OpenAPI file: its status must be listed for the operation, and an error must
be an error object.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import Any
from urllib.parse import quote

import httpx2
import yaml

from deskhand.desktop.remote import sandbox_api
from deskhand.desktop.remote.http_connection import connection_failure
from deskhand.desktop.remote.quota_errors import retry_after
from deskhand.desktop.remote.replies import (
    CommandReply,
    ForeignReply,
    SandboxReply,
    error_object,
    json_object,
    json_reply,
)

SIZE = (1280, 720)
MAX_QUOTA_WAITS = 6
MAX_QUOTA_WAIT_S = 15.0
DELETE_ATTEMPTS = 4
SPEC: dict[str, Any] = yaml.safe_load(
    resources.files(sandbox_api.__package__ or "").joinpath("sandbox_api.openapi.yaml").read_text(encoding="utf-8")
)


class Deviation(Exception):
    """A reply that the protocol does not allow."""


@dataclass
class Gateway:
    """The gateway under test, and the sandbox that the checks share."""

    http: httpx2.AsyncClient
    token: str | None
    boot_s: float
    transport: httpx2.AsyncBaseTransport | None = None
    sandbox: SandboxReply | None = None
    created: dict[str, str | None] = field(default_factory=dict)
    """Ids of the sandboxes that the checks created, whatever they wanted, with their keys."""
    unanswered: list[dict[str, Any]] = field(default_factory=list)
    """Requests for sandboxes without a reply: the gateway may have created these."""

    async def ask(
        self,
        operation: str,
        *expected: int,
        sandbox: SandboxReply | None = None,
        key: str | None = "",
        request_id: str | None = None,
        path: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> httpx2.Response:
        """Return the reply to an operation of the file.

        Raises `Deviation` unless its status is `expected` and listed, and its body an error object if it is an error.
        `key` replaces the token; "" sends the token, None neither.
        """
        url, method, listed = _OPERATIONS[operation]
        sandbox = sandbox or self.sandbox
        url = url.format_map({"sandbox": sandbox.id if sandbox is not None else "none", **(path or {})})
        about = f"{method.upper()} {url}"
        headers = {"x-request-id": request_id} if request_id else {}
        if key is not None and (secret := key or self.token):
            headers["authorization"] = f"Bearer {secret}"
        num_waits = 0
        while True:
            try:
                reply = await self.http.request(method.upper(), url, headers=headers, **arguments)
            except httpx2.TransportError as error:
                if operation == "create":
                    self.unanswered.append({"headers": headers, **arguments})
                raise Deviation(f"{about}: {connection_failure(error, str(self.http.base_url))}") from None
            if reply.status_code != 429 or 429 in expected or num_waits == MAX_QUOTA_WAITS:
                break
            wait_s = retry_after(reply.headers, 0.0)
            if wait_s is None:
                raise Deviation(f"{about}: 429 without a readable Retry-After")
            num_waits += 1
            await asyncio.sleep(min(max(wait_s, 0.5), MAX_QUOTA_WAIT_S))
        if operation == "create" and reply.is_success:
            self._remember(reply)
        if str(reply.status_code) not in listed:
            raise Deviation(f"{about}: {reply.status_code} is not in the protocol")
        if reply.status_code not in expected:
            wanted = " or ".join(map(str, expected))
            raise Deviation(f"{about}: expected {wanted}, got {reply.status_code} {reply.text[:200]}")
        if reply.status_code >= 400 and not operation.startswith("port"):
            read(about, lambda: error_object(reply))
        return reply

    def _remember(self, reply: httpx2.Response) -> None:
        with suppress(ForeignReply):
            found = json_object(reply)
            if isinstance(found.get("id"), str):
                self.created[found["id"]] = found["key"] if isinstance(found.get("key"), str) else None

    async def clean_up(self) -> list[str]:
        """Delete every sandbox that was created; return the ids of those that may be left."""
        for request in self.unanswered:  # with the same x-request-id: the reply has the id of the sandbox
            with suppress(httpx2.TransportError):
                reply = await self.http.request("POST", "/v1/sandboxes", **request)
                if reply.is_success:
                    self._remember(reply)
        self.unanswered.clear()
        for name, key in list(self.created.items()):
            if await self._is_deleted(name, key):
                del self.created[name]
        return list(self.created)

    async def _is_deleted(self, name: str, key: str | None) -> bool:
        url = f"/v1/sandboxes/{quote(name, safe='')}"
        for attempt in range(DELETE_ATTEMPTS):
            for secret in dict.fromkeys((self.token, key)):
                headers = {"authorization": f"Bearer {secret}"} if secret else {}
                with suppress(httpx2.TransportError):
                    reply = await self.http.request("DELETE", url, headers=headers)
                    if reply.is_success or reply.status_code in (404, 410):
                        return True
            await asyncio.sleep(0.2 * 2**attempt)
        return False

    async def create(self, ttl_s: float = 120.0, request_id: str | None = None, **settings: Any) -> SandboxReply:
        body = {"image": None, "width": SIZE[0], "height": SIZE[1], "ttl_s": ttl_s}
        request_id = request_id or secrets.token_hex(16)
        reply = await self.ask("create", 201, request_id=request_id, json=body, **settings)
        found = read("POST /v1/sandboxes", lambda: json_reply(reply, SandboxReply))
        if not found.key:
            raise Deviation("POST /v1/sandboxes: the reply has no key")
        return found

    async def exec(
        self, argv: list[str], *, timeout_s: float = 20.0, request_id: str | None = None, **body: Any
    ) -> CommandReply:
        sent = {"argv": argv, "timeout_s": timeout_s, "env": None, "cwd": None, **body}
        reply = await self.ask("exec", 200, request_id=request_id, json=sent)
        return read("exec", lambda: json_reply(reply, CommandReply))

    async def shell(self, script: str, **settings: Any) -> CommandReply:
        return await self.exec(["sh", "-c", script], **settings)


def _operations() -> dict[str, tuple[str, str, set[str]]]:
    """Path, method and listed statuses of each operation of the file."""
    return {
        operation["operationId"]: (path, method, set(operation["responses"]))
        for path, methods in SPEC["paths"].items()
        for method, operation in methods.items()
        if isinstance(operation, dict)
    }


_OPERATIONS = _operations()


def read(about: str, parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except ForeignReply as error:
        raise Deviation(f"{about}: {error}") from None


def demand(holds: object, message: str) -> None:
    if not holds:
        raise Deviation(message)
