"""Who may read from the viewer: requests from this machine's browser that carry the token.

Used by `viewer.app` as ASGI middleware. The pages and scripts are the same for everybody and hold no data, so they are
open; everything under `/api/` needs the token in the `Authorization` header. The token stands in the fragment of the
printed URL, which browsers do not send; the page keeps it in the storage of its origin, which, unlike a cookie, other
ports of this machine do not get.

Invariant: a request of another web page, or under another host name, reads nothing, whatever it knows.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DATA = "/api/"
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


class ViewerAccess:
    """ASGI middleware that checks host, origin and token, and adds `HEADERS`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

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
                return 401, "token: missing or wrong; open the URL that deskhand view printed"
        return None


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
