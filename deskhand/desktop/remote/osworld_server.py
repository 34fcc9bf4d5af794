"""Client of OSWorld's in-VM server: the endpoints that Deskhand uses; `OsworldServer.client` sends any other request.

Used by `osworld_desktop`. Requests without side effects, and idempotent ones, are retried when their reply is lost. A
reply that does not follow the protocol raises an error that names the endpoint.
"""

from __future__ import annotations

from typing import Any

import httpx2

from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import InfrastructureError


class OsworldServer:
    """The endpoints. Methods raise `InfrastructureError`, and `DeliveryUnknown` if the outcome is unknown."""

    def __init__(self, client: RetryingClient) -> None:
        self.client = client

    async def execute(
        self,
        command: list[str] | str,
        *,
        shell: bool = False,
        may_take_s: float = 0.0,
        repeatable: bool = False,
        acts: bool = True,
    ) -> dict[str, Any]:
        """Return `status`, `output`, `error`, `returncode`."""
        body = {"command": command, "shell": shell}
        reply = await self.client.send(
            "POST", "/execute", repeatable=repeatable, acts=acts, may_take_s=may_take_s, json=body
        )
        return self._json(reply, "/execute")

    async def launch(self, command: list[str] | str, *, shell: bool = False) -> None:
        """Start a program; the server does not report its process id."""
        await self._post_ok("/setup/launch", json={"command": command, "shell": shell}, acts=True)

    async def screenshot(self) -> bytes:
        """Return an unchecked PNG with the pointer."""
        reply = await self.client.send("GET", "/screenshot", repeatable=True)
        return self._check_ok(reply, "/screenshot").content

    async def accessibility(self, *, backend: str | None = None, may_take_s: float = 60.0) -> str | None:
        query = {"backend": backend} if backend else {}
        reply = await self.client.send("GET", "/accessibility", repeatable=True, may_take_s=may_take_s, params=query)
        return self._json(reply, "/accessibility").get("AT")

    async def screen_size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        body = self._json(await self._post("/screen_size"), "/screen_size")
        try:
            return int(body["width"]), int(body["height"])
        except (KeyError, TypeError, ValueError):
            message = f"POST {self.client.base_url}/screen_size: reply without width and height"
            raise InfrastructureError(message) from None

    async def cursor_position(self) -> tuple[int, int]:
        reply = await self.client.send("GET", "/cursor_position", repeatable=True)
        try:
            x, y = self._check_ok(reply, "/cursor_position").json()
            return int(x), int(y)
        except (ValueError, TypeError):
            raise InfrastructureError(f"GET {self.client.base_url}/cursor_position: reply without a position") from None

    async def file(self, path: str) -> bytes:
        """Return a file. Raises `FileNotFoundError`, and `IsADirectoryError` for what the server cannot send."""
        reply = await self._post("/file", data={"file_path": path}, may_take_s=60.0)
        if reply.status_code == 404:
            raise FileNotFoundError(2, "no such file", path)
        if reply.status_code == 500:
            raise IsADirectoryError(21, "not a readable regular file", path)
        return self._check_ok(reply, "/file").content

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file and create its directory; idempotent."""
        parts = {"file_data": ("file", data, "application/octet-stream")}
        await self._post_ok("/setup/upload", data={"file_path": path}, files=parts, may_take_s=60.0)

    async def open_file(self, path: str, *, may_take_s: float = 120.0) -> None:
        await self._post_ok("/setup/open_file", json={"path": path}, may_take_s=may_take_s, acts=True)

    async def _post(
        self, path: str, *, acts: bool = False, may_take_s: float = 0.0, **arguments: Any
    ) -> httpx2.Response:
        return await self.client.send("POST", path, repeatable=not acts, acts=acts, may_take_s=may_take_s, **arguments)

    async def _post_ok(self, path: str, **arguments: Any) -> httpx2.Response:
        return self._check_ok(await self._post(path, **arguments), path)

    def _check_ok(self, reply: httpx2.Response, path: str) -> httpx2.Response:
        if reply.status_code != 200:
            raise self._error(reply, path)
        return reply

    def _json(self, reply: httpx2.Response, path: str) -> dict[str, Any]:
        try:
            body = self._check_ok(reply, path).json()
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise InfrastructureError(f"{self.client.base_url}{path}: the reply is not a JSON object")
        return body

    def _error(self, reply: httpx2.Response, path: str) -> InfrastructureError:
        try:
            body = reply.json()
            message = str(body.get("message") or body.get("error") or "") if isinstance(body, dict) else ""
        except (ValueError, RecursionError):
            message = ""
        return ServerError(f"{self.client.base_url}{path}: {reply.status_code} {message[:500]}".rstrip(), message)


class ServerError(InfrastructureError):
    """The server replied with a failure; `server_message` is its message."""

    def __init__(self, text: str, server_message: str) -> None:
        super().__init__(text)
        self.server_message = server_message
