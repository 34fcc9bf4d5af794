"""Pages and data for this machine's browser alone: `LoopbackAccess`, and a loopback socket to listen on.

Used by the viewer (`reporting.viewer`) and by the watched desktops of a running process (`server.live_app`). Pages and
scripts are the same for everybody and hold no data, so they are open; everything under `/api/` needs the token in the
`Authorization` header, and what changes something needs a second one. Tokens stand in the fragment of the printed URL,
which browsers do not send; the page keeps them in the storage of its origin, which, unlike a cookie, other ports of
this machine do not get.

Invariant: a request of another web page, or under another host name, reads nothing, whatever it knows.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deskhand.errors import ConfigError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DATA = "/api/"
CONTROL_HEADER = "x-control-token"
_READS = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every response."""


class LoopbackAccess:
    """ASGI middleware that checks host, origin and tokens, and adds `HEADERS`.

    `control` is the token of requests that are neither GET nor HEAD; None refuses them all.
    """

    def __init__(self, app: ASGIApp, token: str, *, control: str | None) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._control = None if control is None else control.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found[name] = value
                found.setdefault("cache-control", "no-store" if scope["path"].startswith(DATA) else "no-cache")
            await send(message)

        refusal = self._refusal(scope)
        app = self._app if refusal is None else JSONResponse({"error": refusal[1]}, refusal[0])
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason if a request is refused."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _host_name(f"//{host}") not in LOOPBACK:
            return 403, "host: open the viewer as 127.0.0.1 or localhost"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "origin: requests of other web pages are refused"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"].startswith(DATA):
            return 403, "origin: requests of other web pages are refused"
        if scope["path"].startswith(DATA):
            received = headers.get("authorization", "").encode()
            if not hmac.compare_digest(received, self._expected):
                return 401, "token: missing or wrong; open the URL that the command printed"
        if scope["method"] not in _READS:
            if self._control is None:
                return 403, "control: this page only shows; start deskhand view with --takeover to use a desktop"
            if not hmac.compare_digest(headers.get(CONTROL_HEADER, "").encode(), self._control):
                return 403, "control: missing or wrong token; open the URL for taking over that the command printed"
        return None


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def listen_on_loopback(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1; port 0 selects a free one. Raises `ConfigError` if it is taken."""
    # With this protocol number asyncio sends at once, without waiting for acknowledgements.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()  # clients that connect as soon as the URL is printed wait in the backlog
    except (OSError, OverflowError) as error:
        listener.close()
        why = error.strerror if isinstance(error, OSError) else "ports are 0 to 65535"
        raise ConfigError(f"--port {port}: {why}; choose another port") from error
    return listener


class LoopbackServer(uvicorn.Server):
    """uvicorn for one application, without access log. `handles_signals`: whether Ctrl-C ends it, not its owner."""

    def __init__(self, app: ASGIApp, *, handles_signals: bool = True) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_level="warning", access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
            )
        )
        self._handles_signals = handles_signals

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if not self._handles_signals:
            yield
            return
        with super().capture_signals():
            yield
