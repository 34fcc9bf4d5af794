"""Client of OSWorld's in-VM server: the endpoints that Deskhand uses; `OsworldServer.client` sends any other request.

Used by `osworld_desktop`. Requests without side effects, and idempotent ones, are retried when their reply is lost or
not the server's. An error that the server reports is a `ServerError`, which names the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import httpx2
from pydantic import Field

from deskhand.desktop.remote import guest_scripts
from deskhand.desktop.remote.replies import JsonReply, json_object, json_reply, server_reply
from deskhand.desktop.remote.retrying_client import Parse, RetryingClient
from deskhand.errors import InfrastructureError

Result = TypeVar("Result")


class ExecuteReply(JsonReply):
    """The end of a program. OSWorld's server reports none if it failed to start it."""

    output: str
    error: str = ""
    returncode: int


class _TreeReply(JsonReply):
    AT: str | None


class _Size(JsonReply):
    width: Annotated[int, Field(gt=0)]
    height: Annotated[int, Field(gt=0)]


class ServerError(InfrastructureError):
    """The server replied with a failure; `server_message` is its message."""

    def __init__(self, text: str, server_message: str, status: int) -> None:
        super().__init__(text)
        self.server_message = server_message
        self.status = status


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
    ) -> ExecuteReply:
        settings = {"repeatable": repeatable, "acts": acts, "may_take_s": may_take_s}
        body = {"command": command, "shell": shell}
        return await self.send("POST", "/execute", _of(ExecuteReply), json=body, **settings)

    async def launch(self, command: list[str] | str, *, shell: bool = False) -> None:
        """Start a program; the server does not report its process id."""
        await self._post("/setup/launch", json={"command": command, "shell": shell}, acts=True)

    async def screenshot(self) -> bytes:
        """Return an unchecked PNG with the pointer."""
        return await self.send("GET", "/screenshot", _content)

    async def accessibility(self, *, backend: str | None = None, may_take_s: float = 60.0) -> str | None:
        query = {"backend": backend} if backend else {}
        return (await self.send("GET", "/accessibility", _of(_TreeReply), may_take_s=may_take_s, params=query)).AT

    async def screen_size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        size = await self.send("POST", "/screen_size", _of(_Size))
        return size.width, size.height

    async def cursor_position(self) -> tuple[int, int]:
        return await self.send("GET", "/cursor_position", _of(tuple[int, int]))

    async def platform(self) -> str:
        """Return the guest's system as Python names it: "Linux" or "Windows"."""
        reply = await self.send("GET", "/platform", server_reply)
        return reply.text.strip()

    async def file(self, path: str) -> bytes:
        """Return a file. Raises `FileNotFoundError`, `PermissionError`, `IsADirectoryError` for no regular file, and
        `ServerError` if the server fails at a file that can be read.
        """

        def parse(reply: httpx2.Response) -> bytes:
            if reply.status_code == 404:  # no page of a proxy may count as a missing file
                server_reply(reply)
                json_object(reply)
                raise FileNotFoundError(2, "no such file", path)
            return self._checked(reply, "/file", lambda reply: server_reply(reply).content)

        arguments = {"repeatable": True, "data": {"file_path": path}, "may_take_s": 60.0}
        try:
            return await self.client.send("POST", "/file", parse=parse, **arguments)
        except ServerError as error:
            if error.status != 500:
                raise
            raise await self._file_error(path, error) from error

    async def _file_error(self, path: str, error: ServerError) -> Exception:
        """Return why `/file` replied 500: the server does so for folders, and when it lacks memory or descriptors."""
        command = ["python", "-c", guest_scripts.file_kind_script(path)]
        reply = await self.execute(command, repeatable=True, acts=False)
        return {
            "deskhand special": IsADirectoryError(21, "not a regular file", path),
            "deskhand denied": PermissionError(13, "not readable", path),
            "deskhand missing": FileNotFoundError(2, "no such file", path),
        }.get(reply.output.strip(), error)

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file and create its directory; idempotent."""
        parts = {"file_data": ("file", data, "application/octet-stream")}
        await self._post("/setup/upload", data={"file_path": path}, files=parts, may_take_s=60.0)

    async def open_file(self, path: str, *, may_take_s: float = 120.0) -> None:
        await self._post("/setup/open_file", json={"path": path}, may_take_s=may_take_s, acts=True)

    async def _post(self, path: str, *, acts: bool = False, **arguments: Any) -> None:
        """Send a request whose reply is a text for people."""
        await self.send("POST", path, server_reply, repeatable=not acts, acts=acts, **arguments)

    async def send(
        self, method: str, path: str, parse: Parse[Result], *, repeatable: bool = True, **arguments: Any
    ) -> Result:
        """Return what `parse` returns for a success. Raises `ServerError` for an error that the server reports."""

        def parse_reply(reply: httpx2.Response) -> Result:
            return self._checked(reply, path, parse)

        return await self.client.send(method, path, parse=parse_reply, repeatable=repeatable, **arguments)

    def _checked(self, reply: httpx2.Response, path: str, parse: Callable[[httpx2.Response], Result]) -> Result:
        if reply.status_code == 200:
            return parse(reply)
        server_reply(reply)
        message = message_of(reply)
        text = f"{self.client.base_url}{path}: {reply.status_code} {message[:500]}".rstrip()
        raise ServerError(text, message, reply.status_code)


def _of(kind: type[Any]) -> Parse[Any]:
    return lambda reply: json_reply(reply, kind)


def _content(reply: httpx2.Response) -> bytes:
    return reply.content


def message_of(reply: httpx2.Response) -> str:
    """Return the message of an error that the server reports, "" without one."""
    try:
        body = reply.json()
    except (ValueError, RecursionError):
        return ""
    return str(body.get("message") or body.get("error") or "") if isinstance(body, dict) else ""
