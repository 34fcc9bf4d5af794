"""OSWorld's in-VM server for a desktop of this process.

It is the server's implementation (`server.osworld`), called without a socket. Desktop failures raise
`InfrastructureError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any

import httpx2
from starlette.applications import Starlette

from deskhand.actions.ops import Op
from deskhand.desktop.base import DesktopSpec, Frame, Lease, StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.server.active_leases import ActiveLease
from deskhand.server.guest import Guest
from deskhand.server.osworld.routes import routes

_UNAVAILABLE = 503


class LocalOsworldClient:
    """OSWorld's endpoints for `desktop`, whose screen size is in `template`. Use in one event loop."""

    is_local = True
    """Whether the home is a local desktop's and must be adapted to OSWorld first."""

    def __init__(self, desktop: StageableDesktop, template: DesktopSpec) -> None:
        self._held = ActiveLease(secrets.token_hex(8), Lease(desktop, 0), template, b"", 0, 0.0)
        app = Starlette(routes=routes(lambda _: contextlib.nullcontext(self._held)))
        self._http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://guest", timeout=None)

    @property
    def desktop(self) -> StageableDesktop:
        return self._held.desktop

    @property
    def guest(self) -> Guest:
        return self._held.guest

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the screen in pixels."""
        return self._held.size

    async def request(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        """Send a request with httpx2's `json`, `data` or `files`.

        Raises `InfrastructureError` if the desktop fails or does not respond within `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._http.request(method, path, **body)
        except TimeoutError:
            raise InfrastructureError(f"{method} {path}: no response within {timeout_s:g} s") from None
        if reply.status_code == _UNAVAILABLE:
            raise InfrastructureError(f"{method} {path}: {message_of(reply)}")
        return reply

    async def perform(self, ops: list[Op]) -> Frame:
        """Perform `ops` as the host; see `Desktop.perform`."""
        return await self.desktop.perform(ops, action_id=secrets.token_hex(16))

    async def close(self) -> None:
        """Close the client, not the desktop. Idempotent."""
        self._held.guest.close()
        await self._http.aclose()


def message_of(reply: httpx2.Response) -> str:
    """Return the message of an error response, on one line."""
    try:
        body = reply.json()
    except ValueError:
        body = reply.text
    message = (body.get("message") or body.get("error") or body.get("output")) if isinstance(body, dict) else body
    return " ".join(str(message).split())[:300] or f"status {reply.status_code}"
