"""The server that OSWorld runs inside its virtual machines, endpoint by endpoint. Invariant: a reply that is not of the protocol is
an error that names the endpoint; an error of the server never looks like an answer.

Every endpoint of it is here; what has no effect, or the same when it is sent twice, is repeated when its reply is lost.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2

from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import InfrastructureError

SERVER_COMMAND_S = 120.0
"""After so long the server ends a command itself."""


class OsworldServer:
    """The endpoints. Methods raise `InfrastructureError`, and `DeliveryUnknown` where nobody can know."""

    def __init__(self, link: RetryingClient) -> None:
        self.link = link

    async def execute(
        self,
        command: list[str] | str,
        *,
        shell: bool = False,
        may_take_s: float = 0.0,
        repeatable: bool = False,
        acts: bool = True,
    ) -> dict[str, Any]:
        """`status`, `output`, `error`, `returncode`."""
        body = {"command": command, "shell": shell}
        return await self._object("/execute", body, may_take_s=may_take_s, repeatable=repeatable, acts=acts)

    async def execute_with_verification(
        self, command: list[str] | str, verification: dict[str, Any], *, shell: bool = False, max_wait_s: float = 10.0
    ) -> bool:
        """Whether what was to be seen after the command was seen in time."""
        body = {"command": command, "shell": shell, "verification": verification, "max_wait_time": max_wait_s}
        reply = await self._post(
            "/execute_with_verification", json=body, may_take_s=SERVER_COMMAND_S + max_wait_s, acts=True
        )
        said = self._json(reply, "/execute_with_verification", (200, 500))
        if reply.status_code == 500 and said.get("status") != "verification_failed":
            raise self._error(reply, "/execute_with_verification")
        return reply.status_code == 200

    async def launch(self, command: list[str] | str, *, shell: bool = False) -> None:
        """Start a program; its process id is not told."""
        await self._done("/setup/launch", json={"command": command, "shell": shell}, acts=True)

    async def run_python(self, code: str) -> dict[str, Any]:
        return await self._object("/run_python", {"code": code}, may_take_s=30.0)

    async def run_bash_script(
        self, script: str, *, timeout_s: float = 30.0, folder: str | None = None
    ) -> dict[str, Any]:
        body = {"script": script, "timeout": timeout_s, "working_dir": folder}
        return await self._object("/run_bash_script", body, may_take_s=timeout_s)

    async def screenshot(self) -> bytes:
        """A PNG with the pointer in it, not looked at here."""
        reply = await self.link.send("GET", "/screenshot", repeatable=True)
        return self._fine(reply, "/screenshot").content

    async def accessibility(self, *, backend: str | None = None, may_take_s: float = 60.0) -> str | None:
        parameters = {"backend": backend} if backend else {}
        reply = await self.link.send("GET", "/accessibility", repeatable=True, may_take_s=may_take_s, params=parameters)
        return self._json(reply, "/accessibility").get("AT")

    async def terminal(self) -> str | None:
        reply = await self.link.send("GET", "/terminal", repeatable=True, may_take_s=20.0)
        return self._json(reply, "/terminal").get("output")

    async def screen_size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        said = self._json(await self._post("/screen_size"), "/screen_size")
        try:
            return int(said["width"]), int(said["height"])
        except (KeyError, TypeError, ValueError):
            raise InfrastructureError(
                f"POST {self.link.address}/screen_size: no width and height in the reply"
            ) from None

    async def window_size(self, app_class_name: str) -> tuple[int, int] | None:
        """(width, height) of the first window of a class; None when there is none, of which the server makes an error."""
        reply = await self._post("/window_size", data={"app_class_name": app_class_name})
        if reply.status_code == 500:
            return None
        said = self._json(reply, "/window_size")
        return int(said["width"]), int(said["height"])

    async def cursor_position(self) -> tuple[int, int]:
        reply = await self.link.send("GET", "/cursor_position", repeatable=True)
        try:
            x, y = self._fine(reply, "/cursor_position").json()
            return int(x), int(y)
        except (ValueError, TypeError):
            raise InfrastructureError(f"GET {self.link.address}/cursor_position: no place in the reply") from None

    async def platform(self) -> str:
        return self._fine(await self.link.send("GET", "/platform", repeatable=True), "/platform").text.strip()

    async def desktop_path(self) -> str:
        return str(self._json(await self._post("/desktop_path"), "/desktop_path").get("desktop_path", ""))

    async def wallpaper(self) -> bytes:
        return (await self._done("/wallpaper")).content

    async def change_wallpaper(self, path: str) -> None:
        await self._done("/setup/change_wallpaper", json={"path": path})

    async def list_directory(self, path: str) -> dict[str, Any]:
        """The tree under a folder: `type`, `name`, `children`. Raises `FileNotFoundError`."""
        reply = await self._post("/list_directory", json={"path": path}, may_take_s=20.0)
        if reply.status_code == 400:
            raise FileNotFoundError(2, "no such folder", path)
        return self._json(reply, "/list_directory").get("directory_tree", {})

    async def file(self, path: str) -> bytes:
        """A file's bytes. Raises `FileNotFoundError`, and `IsADirectoryError` for what the server cannot send."""
        reply = await self._post("/file", data={"file_path": path}, may_take_s=60.0)
        if reply.status_code == 404:
            raise FileNotFoundError(2, "no such file", path)
        if reply.status_code == 500:
            raise IsADirectoryError(21, "no plain file that can be read", path)
        return self._fine(reply, "/file").content

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file and make its folder; twice is as once."""
        parts = {"file_data": ("file", data, "application/octet-stream")}
        await self._done("/setup/upload", data={"file_path": path}, files=parts, may_take_s=60.0)

    async def download_file(self, url: str, path: str) -> None:
        """The machine itself fetches `url`."""
        await self._done("/setup/download_file", json={"url": url, "path": path}, may_take_s=900.0)

    async def open_file(self, path: str, *, may_take_s: float = 120.0) -> None:
        await self._done("/setup/open_file", json={"path": path}, may_take_s=may_take_s, acts=True)

    async def activate_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        body = {"window_name": name, "strict": strict, "by_class": by_class}
        await self._done("/setup/activate_window", json=body)

    async def close_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        body = {"window_name": name, "strict": strict, "by_class": by_class}
        await self._done("/setup/close_window", json=body, acts=True)

    async def start_recording(self) -> None:
        await self._done("/start_recording", acts=True)

    async def end_recording(self) -> bytes:
        """The film, an MP4."""
        return (await self._done("/end_recording", may_take_s=30.0, acts=True)).content

    async def _post(
        self, path: str, *, acts: bool = False, may_take_s: float = 0.0, **arguments: Any
    ) -> httpx2.Response:
        return await self.link.send("POST", path, repeatable=not acts, acts=acts, may_take_s=may_take_s, **arguments)

    async def _done(self, path: str, **arguments: Any) -> httpx2.Response:
        """The reply to a POST that must go well."""
        return self._fine(await self._post(path, **arguments), path)

    async def _object(
        self, path: str, body: dict[str, Any], *, may_take_s: float, repeatable: bool = False, acts: bool = True
    ) -> dict[str, Any]:
        send = self.link.send("POST", path, repeatable=repeatable, acts=acts, may_take_s=may_take_s, json=body)
        return self._json(await send, path)

    def _fine(self, reply: httpx2.Response, path: str) -> httpx2.Response:
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
            raise InfrastructureError(f"{self.link.address}{path}: the reply is no JSON object")
        return body

    def _error(self, reply: httpx2.Response, path: str) -> InfrastructureError:
        try:
            body = reply.json()
            said = str(body.get("message") or body.get("error") or "") if isinstance(body, dict) else ""
        except (ValueError, RecursionError):
            said = ""
        return ServerError(f"{self.link.address}{path}: {reply.status_code} {said[:500]}".rstrip(), said)


class ServerError(InfrastructureError):
    """The server answered that it failed. `said` is its message."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said
