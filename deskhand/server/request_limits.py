"""How much and how slowly a client may send and take. Invariant: no connection holds the bridge's memory or a place in it without
end.

A request's head and its body must each come in time, and neither may be larger than its bound. Who was answered before the body had
come, and goes on sending it, has as long as for a head; who does not take an answer, as long as for a body.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from deskhand.server.http_errors import HttpError

_FORM_BYTES = 64 << 10
_UPLOADS = ("/setup/upload", "/desktop/file", "/files")
"""How paths end at which files are sent: OSWorld's, ours, and those of the gateway."""


@dataclass(frozen=True)
class RequestLimits:
    """Seconds and bytes. `upload_bytes` is of a file that is sent, without the form around it: what a desktop takes of one."""

    head_s: float = 15.0
    head_bytes: int = 32 << 10
    body_s: float = 120.0
    body_bytes: int = 8 << 20
    upload_bytes: int = 64 << 20


class SizeLimitedBody:
    """Wraps an application: `receive` raises `Refused` (413, 408) past the bounds, which the handler's wrapper answers."""

    def __init__(self, app: ASGIApp, bounds: RequestLimits) -> None:
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
                raise HttpError(
                    408, f"the body did not come within {bounds.body_s:g} s", {"connection": "close"}
                ) from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if size > most:
                    raise HttpError(413, f"the body has more than {most} bytes", {"connection": "close"})
            return message

        await self._app(scope, bounded, send)


class TimeoutProtocol(H11Protocol):
    """uvicorn's protocol, which alone would wait for ever for the head of a request, for the rest of a body that nobody asked for,
    and for a client that takes its answer."""

    head_s = RequestLimits.head_s
    body_s = RequestLimits.body_s
    _waiting: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self.loop.call_later(self.body_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_waiting_for_taking()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._stop_waiting_for_taking()
        super().connection_lost(exc)

    def _owes_a_head(self) -> bool:
        return self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete)

    def _is_answered(self) -> bool:
        """Whether the answer is out while the body of the request still comes."""
        return self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE and not self._is_answered():
            self._unwatch()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.head_s, self._give_up)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _stop_waiting_for_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _give_up(self) -> None:
        self._waiting = None
        if self._owes_a_head() or self._is_answered():
            self.transport.close()


def protocol_with_limits(bounds: RequestLimits) -> type[H11Protocol]:
    """The protocol with the times of `bounds`."""
    return type("Patient", (TimeoutProtocol,), {"head_s": bounds.head_s, "body_s": bounds.body_s})
