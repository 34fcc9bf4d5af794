"""How much and how slowly a client may send. Invariant: no connection holds the bridge's memory or a place in it without end.

A request's head and its body must each come in time, and neither may be larger than its bound.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from deskhand.bridge.refusal import Refused

_FORM_BYTES = 64 << 10
_UPLOADS = ("/setup/upload", "/desktop/file")


@dataclass(frozen=True)
class Bounds:
    """Seconds and bytes. `upload_bytes` is of a file that is sent, without the form around it: what a desktop takes of one."""

    head_s: float = 15.0
    head_bytes: int = 32 << 10
    body_s: float = 120.0
    body_bytes: int = 8 << 20
    upload_bytes: int = 64 << 20


class BoundedBody:
    """Wraps an application: `receive` raises `Refused` (413, 408) past the bounds, which the handler's wrapper answers."""

    def __init__(self, app: ASGIApp, bounds: Bounds) -> None:
        self._app = app
        self._bounds = bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        bounds = self._bounds
        most = bounds.upload_bytes + _FORM_BYTES if scope["path"].endswith(_UPLOADS) else bounds.body_bytes
        deadline = asyncio.get_running_loop().time() + bounds.body_s
        size, whole = 0, False

        async def bounded() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise Refused(408, f"the body did not come within {bounds.body_s:g} s", {"connection": "close"}) from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if size > most:
                    raise Refused(413, f"the body has more than {most} bytes", {"connection": "close"})
            return message

        await self._app(scope, bounded, send)


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, which alone would wait for ever for the head of a request."""

    head_s = Bounds.head_s
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.head_s, self._give_up)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()


def patient(bounds: Bounds) -> type[H11Protocol]:
    """The protocol with the time of `bounds`."""
    return type("Patient", (PatientProtocol,), {"head_s": bounds.head_s})
