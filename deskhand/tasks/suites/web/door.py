"""What stands between guests and the applications of a desktop: an entry address, a cookie, a policy for pages.

Used by the applications in the server process: `server.Site` and `hub.HubApp`. A request reaches an application only
with the cookie that the first visit of the entry address gave to the browser.
"""

from __future__ import annotations

import secrets
from http.cookies import SimpleCookie
from typing import ClassVar

from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import Message, Receive, Scope, Send

COOKIE = "site"
Headers = dict[bytes, bytes]


class Door:
    """An ASGI application that refuses what it does not accept. Subclasses define `serve` and `accepts_request`."""

    policy: ClassVar[str]
    """Content security policy of every page."""
    max_body_bytes: ClassVar[int] = 64 * 1024

    def __init__(self, entry: str, start: str) -> None:
        self.entry = entry
        """Secret part of the address that gives a browser access, once."""
        self.start = start
        """Path of the first page."""
        self.cookie = secrets.token_urlsafe(24)
        self.is_entered = False
        self.num_refused = 0
        """Requests without the cookie, and those that no page or person sent."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an accepted request."""
        raise NotImplementedError

    def accepts_request(self, scope: Scope, headers: Headers) -> bool:
        """Return whether a request of the browser comes from a page or a person, as it must."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", self.policy.encode())]
            await send(message)

        await self._answer(scope, receive, send_with_policy)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if not self.is_entered and secrets.compare_digest(scope["path"].encode(), f"/enter/{self.entry}".encode()):
            self.is_entered = True
            response = RedirectResponse(self.start, status_code=303)
            response.set_cookie(COOKIE, self.cookie, httponly=True, samesite="strict")
            await response(scope, receive, send)
        elif (
            self._has_cookie(headers)
            and self._is_small(scope["method"], headers)
            and self.accepts_request(scope, headers)
        ):
            await self.serve(scope, receive, send)
        else:
            await self.refuse(scope, receive, send)

    async def refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_refused += 1
        await PlainTextResponse("refused\n", status_code=403)(scope, receive, send)

    def _has_cookie(self, headers: Headers) -> bool:
        jar = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        return COOKIE in jar and secrets.compare_digest(jar[COOKIE].value.encode(), self.cookie.encode())

    def _is_small(self, method: str, headers: Headers) -> bool:
        size = headers.get(b"content-length", b"0" if method in ("GET", "HEAD") else b"")
        return size.isdigit() and int(size) <= self.max_body_bytes
