"""OSWorld's in-VM server for a desktop of this process. Invariant: it is the bridge's own server, reached without a socket; what
the desktop cannot do is an `InfrastructureError` and never an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
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


class _Alone:
    """The book of one lease that nobody takes back."""

    @contextlib.contextmanager
    def using(self, lease: ActiveLease) -> Iterator[ActiveLease]:
        yield lease


class LocalOsworldClient:
    """`desktop`, whose screen is as `template` says, by OSWorld's endpoints. To be used in one event loop."""

    ours = True
    """Whether the home is one of ours, which is to be made OSWorld's first."""

    def __init__(self, desktop: StageableDesktop, template: DesktopSpec) -> None:
        self._held = ActiveLease(secrets.token_hex(8), Lease(desktop, 0), template, b"", 0, 0.0)
        app = Starlette(routes=routes(lambda _: self._held, _Alone()))
        self._client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://guest", timeout=None)

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

    async def ask(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        """One request, with `json`, `data` or `files` as httpx2 takes them. Raises `InfrastructureError` when the desktop fails or
        gives no answer within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._client.request(method, path, **body)
        except TimeoutError:
            raise InfrastructureError(f"{method} {path}: the desktop gave no answer within {timeout_s:g} s") from None
        if reply.status_code == _UNAVAILABLE:
            raise InfrastructureError(f"{method} {path}: {message_of(reply)}")
        return reply

    async def perform(self, ops: list[Op]) -> Frame:
        """Perform `ops` as the host does; see `Desktop.perform`."""
        return await self.desktop.perform(ops, action_id=secrets.token_hex(16))

    async def close(self) -> None:
        """Leave the desktop alone. Idempotent."""
        self._held.guest.close()
        await self._client.aclose()


def message_of(reply: httpx2.Response) -> str:
    """What a reply that is no success says, on one line."""
    try:
        body = reply.json()
    except ValueError:
        body = reply.text
    said = (body.get("message") or body.get("error") or body.get("output")) if isinstance(body, dict) else body
    return " ".join(str(said).split())[:300] or f"status {reply.status_code}"
