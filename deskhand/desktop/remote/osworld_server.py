"""Client of OSWorld's in-VM server: one method per endpoint.

Used by `osworld_desktop`. Requests without side effects, and idempotent ones, are retried when their reply is lost. A
reply that does not follow the protocol raises an error that names the endpoint.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2

from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import InfrastructureError

SERVER_COMMAND_TIMEOUT_S = 120.0
"""The server kills commands after this time."""


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
        return await self._object("/execute", body, may_take_s=may_take_s, repeatable=repeatable, acts=acts)

    async def execute_with_verification(
        self, command: list[str] | str, verification: dict[str, Any], *, shell: bool = False, max_wait_s: float = 10.0
    ) -> bool:
        """Return whether the verification passed in time."""
        request = {"command": command, "shell": shell, "verification": verification, "max_wait_time": max_wait_s}
        reply = await self._post(
            "/execute_with_verification", json=request, may_take_s=SERVER_COMMAND_TIMEOUT_S + max_wait_s, acts=True
        )
        body = self._json(reply, "/execute_with_verification", (200, 500))
        if reply.status_code == 500 and body.get("status") != "verification_failed":
            raise self._error(reply, "/execute_with_verification")
        return reply.status_code == 200

    async def launch(self, command: list[str] | str, *, shell: bool = False) -> None:
        """Start a program; the server does not report its process id."""
        await self._post_ok("/setup/launch", json={"command": command, "shell": shell}, acts=True)

    async def run_python(self, code: str) -> dict[str, Any]:
        return await self._object("/run_python", {"code": code}, may_take_s=30.0)

    async def run_bash_script(
        self, script: str, *, timeout_s: float = 30.0, folder: str | None = None
    ) -> dict[str, Any]:
        body = {"script": script, "timeout": timeout_s, "working_dir": folder}
        return await self._object("/run_bash_script", body, may_take_s=timeout_s)

    async def screenshot(self) -> bytes:
        """Return an unchecked PNG with the pointer."""
        reply = await self.client.send("GET", "/screenshot", repeatable=True)
        return self._check_ok(reply, "/screenshot").content

    async def accessibility(self, *, backend: str | None = None, may_take_s: float = 60.0) -> str | None:
        parameters = {"backend": backend} if backend else {}
        reply = await self.client.send(
            "GET", "/accessibility", repeatable=True, may_take_s=may_take_s, params=parameters
        )
        return self._json(reply, "/accessibility").get("AT")

    async def terminal(self) -> str | None:
        reply = await self.client.send("GET", "/terminal", repeatable=True, may_take_s=20.0)
        return self._json(reply, "/terminal").get("output")

    async def screen_size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        body = self._json(await self._post("/screen_size"), "/screen_size")
        try:
            return int(body["width"]), int(body["height"])
        except (KeyError, TypeError, ValueError):
            raise InfrastructureError(
                f"POST {self.client.base_url}/screen_size: reply without width and height"
            ) from None

    async def window_size(self, app_class_name: str) -> tuple[int, int] | None:
        """Return (width, height) of the first window of a class; None without one, for which the server replies with
        an error."""
        reply = await self._post("/window_size", data={"app_class_name": app_class_name})
        if reply.status_code == 500:
            return None
        body = self._json(reply, "/window_size")
        return int(body["width"]), int(body["height"])

    async def cursor_position(self) -> tuple[int, int]:
        reply = await self.client.send("GET", "/cursor_position", repeatable=True)
        try:
            x, y = self._check_ok(reply, "/cursor_position").json()
            return int(x), int(y)
        except (ValueError, TypeError):
            raise InfrastructureError(f"GET {self.client.base_url}/cursor_position: reply without a position") from None

    async def platform(self) -> str:
        return self._check_ok(await self.client.send("GET", "/platform", repeatable=True), "/platform").text.strip()

    async def desktop_path(self) -> str:
        return str(self._json(await self._post("/desktop_path"), "/desktop_path").get("desktop_path", ""))

    async def wallpaper(self) -> bytes:
        return (await self._post_ok("/wallpaper")).content

    async def change_wallpaper(self, path: str) -> None:
        await self._post_ok("/setup/change_wallpaper", json={"path": path})

    async def list_directory(self, path: str) -> dict[str, Any]:
        """Return a directory tree: `type`, `name`, `children`. Raises `FileNotFoundError`."""
        reply = await self._post("/list_directory", json={"path": path}, may_take_s=20.0)
        if reply.status_code == 400:
            raise FileNotFoundError(2, "no such directory", path)
        return self._json(reply, "/list_directory").get("directory_tree", {})

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

    async def download_file(self, url: str, path: str) -> None:
        """Let the machine download `url`."""
        await self._post_ok("/setup/download_file", json={"url": url, "path": path}, may_take_s=900.0)

    async def open_file(self, path: str, *, may_take_s: float = 120.0) -> None:
        await self._post_ok("/setup/open_file", json={"path": path}, may_take_s=may_take_s, acts=True)

    async def activate_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        body = {"window_name": name, "strict": strict, "by_class": by_class}
        await self._post_ok("/setup/activate_window", json=body)

    async def close_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        body = {"window_name": name, "strict": strict, "by_class": by_class}
        await self._post_ok("/setup/close_window", json=body, acts=True)

    async def start_recording(self) -> None:
        await self._post_ok("/start_recording", acts=True)

    async def end_recording(self) -> bytes:
        """Return the recording as MP4."""
        return (await self._post_ok("/end_recording", may_take_s=30.0, acts=True)).content

    async def _post(
        self, path: str, *, acts: bool = False, may_take_s: float = 0.0, **arguments: Any
    ) -> httpx2.Response:
        return await self.client.send("POST", path, repeatable=not acts, acts=acts, may_take_s=may_take_s, **arguments)

    async def _post_ok(self, path: str, **arguments: Any) -> httpx2.Response:
        return self._check_ok(await self._post(path, **arguments), path)

    async def _object(
        self, path: str, body: dict[str, Any], *, may_take_s: float, repeatable: bool = False, acts: bool = True
    ) -> dict[str, Any]:
        send = self.client.send("POST", path, repeatable=repeatable, acts=acts, may_take_s=may_take_s, json=body)
        return self._json(await send, path)

    def _check_ok(self, reply: httpx2.Response, path: str) -> httpx2.Response:
        if reply.status_code != 200:
            raise self._error(reply, path)
        return reply

    def _json(self, reply: httpx2.Response, path: str, statuses: tuple[int, ...] = (200,)) -> dict[str, Any]:
        if reply.status_code not in statuses:
            raise self._error(reply, path)
        try:
            body = reply.json()
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
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
