"""OSWorld's in-VM server as `SetupRunner` and the getters call it: in process, on OSWorld's own machine, or a saved end
state.

Desktop failures raise `InfrastructureError`. Data that was not saved raises `EvaluatorError`; it is never treated as
missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any, cast

import httpx2
from starlette.applications import Starlette

from deskhand.actions.ops import Op
from deskhand.desktop.base import DesktopSpec, Frame, Lease, StageableDesktop
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.replies import ForeignReply, describe, json_object, server_reply
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.server_desktop import ServerDesktop
from deskhand.errors import EvaluatorError, InfrastructureError
from deskhand.server.active_leases import ActiveLease
from deskhand.server.guest import OSWORLD_HOME, Guest
from deskhand.server.osworld.routes import routes
from deskhand.tasks.end_state import EndState

_UNAVAILABLE = 503
_REPEATABLE_PATHS = frozenset(
    {"/file", "/list_directory", "/screen_size", "/window_size", "/wallpaper", "/setup/upload"}
)
"""Requests without side effects, sent again if the response is lost."""
_COMMAND_KEYS = {"output", "error", "returncode"}
_REPLY_KEYS = {
    "/execute": _COMMAND_KEYS,
    "/setup/execute": _COMMAND_KEYS,
    "/accessibility": {"AT"},
    "/terminal": {"output"},
    "/screen_size": {"width", "height"},
    "/window_size": {"width", "height"},
    "/desktop_path": {"desktop_path"},
    "/list_directory": {"directory_tree"},
}
"""Keys of the JSON object that a success has. Another body comes from a proxy."""


class OsworldClient:
    """OSWorld's endpoints for `desktop`, whose screen has `size` pixels. Use in one event loop."""

    is_local = False
    """Whether the home is a local desktop's and must be adapted to OSWorld first."""
    is_saved = False
    """Whether this is a saved end state, without running programs."""

    def __init__(self, desktop: StageableDesktop, spec: DesktopSpec, guest: Guest) -> None:
        self.desktop, self.guest = desktop, guest
        self.size = spec.width, spec.height

    async def request(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        """Send a request with httpx2's `json`, `data` or `files`.

        Raises `InfrastructureError` if the desktop fails or does not respond within `timeout_s`.
        """
        raise NotImplementedError

    async def perform(self, ops: list[Op]) -> Frame:
        """Perform `ops` as the host; see `Desktop.perform`."""
        return await self.desktop.perform(ops, action_id=secrets.token_hex(16))

    async def close(self) -> None:
        """Close the client, not the desktop. Idempotent."""


class LocalOsworldClient(OsworldClient):
    """The server's implementation (`server.osworld`), called without a socket, for any desktop of this process."""

    is_local = True

    def __init__(self, desktop: StageableDesktop, spec: DesktopSpec) -> None:
        lease = ActiveLease(secrets.token_hex(8), Lease(desktop, 0), spec, b"", 0, 0.0)
        super().__init__(desktop, spec, lease.guest)
        app = Starlette(routes=routes(lambda _: contextlib.nullcontext(lease)))
        self._http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://guest", timeout=None)

    async def request(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._http.request(method, path, **body)
        except TimeoutError:
            raise InfrastructureError(f"{method} {path}: no response within {timeout_s:g} s") from None
        if reply.status_code == _UNAVAILABLE:
            raise InfrastructureError(f"{method} {path}: {message_of(reply)}")
        return reply

    async def close(self) -> None:
        self.guest.close()
        await self._http.aclose()


class _RemoteGuest(Guest):
    """Files and programs of a machine, through its server, which expands paths itself. Nothing is installed there."""

    async def expand(self, path: str) -> str:
        return path

    async def has_program(self, program: str) -> bool:
        script = 'command -v -- "$1" >/dev/null'
        return (await self.desktop.run(["/bin/sh", "-c", script, "sh", program])).returncode == 0

    async def read(self, path: str) -> bytes:
        return await self.desktop.pull(path)


class RemoteOsworldClient(OsworldClient):
    """OSWorld's own server in its own VM. Requests are passed on unchanged; the pool closes the machine.

    `link` is a connection to the server of a machine that a desktop server leases; it is closed with the client.
    """

    def __init__(
        self, machine: OsworldDesktop | ServerDesktop, spec: DesktopSpec, link: RetryingClient | None = None
    ) -> None:
        super().__init__(machine, spec, _RemoteGuest(machine, spec.width, spec.height))
        self._machine, self._link = machine, link

    @property
    def _server(self) -> RetryingClient:
        if self._link is not None:
            return self._link
        return cast(OsworldDesktop, self._machine).server.client

    async def request(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        def parse(reply: httpx2.Response) -> httpx2.Response:
            server_reply(reply)
            keys = _REPLY_KEYS.get(path) if reply.status_code == 200 else None
            if keys and (missing := keys - json_object(reply).keys()):
                raise ForeignReply(f"{describe(reply)}: without {', '.join(sorted(missing))}")
            return reply

        repeatable = method == "GET" or path in _REPEATABLE_PATHS
        delivery: dict[str, Any] = {"repeatable": repeatable, "acts": not repeatable, "may_take_s": timeout_s}
        return await self._server.send(method, path, parse=parse, **delivery, **body)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()


def client_for(desktop: StageableDesktop, spec: DesktopSpec) -> OsworldClient:
    """Return the client of a desktop: a machine's own server, also behind a desktop server, else the emulation."""
    if isinstance(desktop, OsworldDesktop):
        return RemoteOsworldClient(desktop, spec)
    if isinstance(desktop, ServerDesktop) and (link := desktop.open_machine()) is not None:
        return RemoteOsworldClient(desktop, spec, link)
    return LocalOsworldClient(desktop, spec)


class _SavedGuest(Guest):
    """Files of the saved home."""

    async def expand(self, path: str) -> str:
        return f"{OSWORLD_HOME}/{path[2:]}" if path.startswith("~/") else path

    async def read(self, path: str) -> bytes:
        if path.startswith("/") and not path.startswith(f"{OSWORLD_HOME}/"):
            raise EvaluatorError(f"{path}: outside the home, so not saved; score on a live desktop")
        return await self.desktop.pull(path)


class SavedClient(OsworldClient):
    """A saved end state, on which a task can be scored again. Nothing is run: the steps ran before it was saved."""

    is_saved = True

    def __init__(self, state: EndState, spec: DesktopSpec) -> None:
        saved: Any = state
        super().__init__(saved, spec, _SavedGuest(saved, spec.width, spec.height))

    async def request(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        raise EvaluatorError(f"{path}: not available in a saved end state; score on a live desktop")


def message_of(reply: httpx2.Response) -> str:
    """Return the message of an error response, on one line."""
    try:
        body = reply.json()
    except ValueError:
        body = reply.text
    message = (body.get("message") or body.get("error") or body.get("output")) if isinstance(body, dict) else body
    return " ".join(str(message).split())[:300] or f"status {reply.status_code}"
