"""Size and time limits of requests, for the desktop server and the sandbox gateway.

Invariant: no connection occupies memory or a connection slot without a time limit. The head and the body of a request
must each arrive in time. A client that keeps sending a body after the reply has as long as for a head; one that does
not read its reply has as long as for a body.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from deskhand.server.http_errors import HttpError

_FORM_OVERHEAD_BYTES = 64 << 10
_UPLOAD_PATHS = ("/setup/upload", "/desktop/file", "/files")
"""Path suffixes of file uploads: OSWorld's, the native API's and the gateway's."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits in seconds and bytes. `upload_bytes` excludes the surrounding form."""

    head_s: float = 15.0
    head_bytes: int = 32 << 10
    body_s: float = 120.0
    body_bytes: int = 8 << 20
    upload_bytes: int = 64 << 20


class SizeLimitedBody:
    """ASGI middleware whose `receive` raises `HttpError` (413, 408) beyond the limits."""

    def __init__(self, app: ASGIApp, limits: RequestLimits | None) -> None:
        self._app, self._limits = app, limits or RequestLimits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limits = self._limits
        is_upload = scope["path"].endswith(_UPLOAD_PATHS)
        max_bytes = limits.upload_bytes + _FORM_OVERHEAD_BYTES if is_upload else limits.body_bytes
        deadline = asyncio.get_running_loop().time() + limits.body_s
        size, is_complete = 0, False

        async def limited_receive() -> Message:
            nonlocal size, is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                message = f"the request body did not arrive within {limits.body_s:g} s"
                raise HttpError(408, message, {"connection": "close"}) from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                is_complete = not message.get("more_body", False)
                if size > max_bytes:
                    raise HttpError(413, f"the request body exceeds {max_bytes} bytes", {"connection": "close"})
            return message

        await self._app(scope, limited_receive, send)


class TimeoutProtocol(H11Protocol):
    """uvicorn's protocol with timeouts for request heads, unread bodies and unread replies, which uvicorn lacks."""

    head_s = RequestLimits.head_s
    body_s = RequestLimits.body_s
    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._update_read_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_read_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_read_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.body_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._write_timer = _cancel(self._write_timer)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_timer, self._write_timer = _cancel(self._read_timer), _cancel(self._write_timer)
        super().connection_lost(exc)

    def _awaits_head(self) -> bool:
        return self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete)

    def _awaits_rest_of_body(self) -> bool:
        """Return whether the reply is complete while the request body still arrives."""
        return self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete

    def _update_read_timer(self) -> None:
        if self.conn.their_state is not h11.IDLE and not self._awaits_rest_of_body():
            self._read_timer = _cancel(self._read_timer)
        elif self._read_timer is None:
            self._read_timer = self.loop.call_later(self.head_s, self._on_read_timeout)

    def _on_read_timeout(self) -> None:
        self._read_timer = None
        if self._awaits_head() or self._awaits_rest_of_body():
            self.transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def protocol_with_limits(limits: RequestLimits) -> type[H11Protocol]:
    """Return the protocol class with the timeouts of `limits`."""
    return type("LimitedProtocol", (TimeoutProtocol,), {"head_s": limits.head_s, "body_s": limits.body_s})
