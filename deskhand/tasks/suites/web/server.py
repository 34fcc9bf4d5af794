"""The server process of the suite's web applications: one for all desktops of this process.

Started by `suites.web.sites`, which holds the other end of its control socket; no guest and no other program has a way
to that socket. A request there carries the listener of one desktop's network, a site's start state, or asks for the
state. Requests of guests reach the applications only: they need the cookie that the first visit of the entry address
gave to the browser. A form is accepted from a page that the server rendered for its path, if it was sent by pointer or
keyboard. Pages have no scripts, and the browser runs none in them. Applications of CUA-Gym-Hub (`suites.web.hub`) have
scripts; they are served in the same way.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import sys
import threading
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from deskhand.tasks.suites.web.apps import booking, calendar, files, issues, mail, shop
from deskhand.tasks.suites.web.door import Door, Headers
from deskhand.tasks.suites.web.hub import HubSite

HEAD = struct.Struct("<I")
MAX_CONNECTIONS = 64
"""Limit of one desktop: the process has file descriptors for the connections of all."""
NOBODY = 65534
APPS = {each.app.name: each.app for each in (mail, shop, calendar, issues, booking, files)}
_APPLICATION = Starlette(routes=[app.mount for app in APPS.values()])
_MENU = "".join(f"<a href='{app.home}'>{app.title}</a>" for app in APPS.values())
_USER_ACTION = {b"sec-fetch-site": b"same-origin", b"sec-fetch-dest": b"document", b"sec-fetch-user": b"?1"}
"""Headers of a form that a person has sent; scripts cannot set them."""
_POLICY = (
    "default-src 'none'; script-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'self'; "
    "frame-ancestors 'none'"
)
"""Also stops `javascript:` addresses and bookmarks on a page of the site."""


class Site(Door):
    """The project's own applications of one desktop."""

    policy = _POLICY

    def __init__(self, state: dict[str, Any], style: dict[str, Any], entry: str, start: str) -> None:
        super().__init__(entry, start)
        self.state, self.style = state, style
        self._key = secrets.token_bytes(32)

    def form_token(self, path: str) -> str:
        """Return what a form for this path has in a hidden field.

        It depends on the path alone, so that a form still works after a reload, and with the back button.
        """
        return hmac.digest(self._key, path.encode(), hashlib.sha256).hex()

    def accepts_token(self, path: str, token: str) -> bool:
        """Return whether a form was rendered for the path to which it was sent. Counts those that were not."""
        is_right = secrets.compare_digest(token.encode(), self.form_token(path).encode())
        self.num_refused += not is_right
        return is_right

    def accepts_request(self, scope: Scope, headers: Headers) -> bool:
        is_from_person = all(headers.get(name) == value for name, value in _USER_ACTION.items())
        return scope["method"] in ("GET", "HEAD") or is_from_person

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _APPLICATION({**scope, "site": self, "menu": _MENU}, receive, send)


class _Connection(H11Protocol):
    """A connection of a guest. Those beyond `MAX_CONNECTIONS` are closed at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()


class SiteServer:
    """Serves sites in an event loop of its own thread, and answers the control socket in this one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._sites: dict[int, tuple[Site | HubSite, uvicorn.Server]] = {}
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def answer(self, request: dict[str, Any], listener: socket.socket | None) -> dict[str, Any]:
        """Carry out a request of the host: `do` is open, read, write or close; `site` is a number."""
        number, do = request["site"], request["do"]
        if do == "open":
            assert listener is not None
            if "hub" in request:
                site = HubSite(request["hub"], request["entry"])
            else:
                site = Site(request["state"], request["style"], request["entry"], request["start"])
            settings = uvicorn.Config(
                site,
                lifespan="off",
                log_config=None,
                access_log=False,
                http=_Connection,
                server_header=False,
                ws="none",
            )
            server = uvicorn.Server(settings)
            self._sites[number] = site, server
            asyncio.run_coroutine_threadsafe(server.serve(sockets=[listener]), self._loop)
        elif do == "close":
            if found := self._sites.pop(number, None):
                found[1].should_exit = found[1].force_exit = True
        elif do == "write":
            self._on_loop(lambda: setattr(self._sites[number][0], "state", request["state"]))
        else:
            site = self._sites[number][0]
            text = self._on_loop(lambda: json.dumps(site.state))
            return {"state": json.loads(text), "entered": site.is_entered, "refused": site.num_refused}
        return {}

    def _on_loop(self, call: Any) -> Any:
        """Between two requests of guests: they change the state in the loop."""

        async def run() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


def drop_privileges() -> None:
    """Become a user without rights, if this is root: the process reads what guests send."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def main() -> None:
    """`argv`: descriptor of the control socket. Ends with it."""
    control = socket.socket(fileno=int(sys.argv[1]))
    drop_privileges()
    server = SiteServer()
    while True:
        head, descriptors, _, _ = socket.recv_fds(control, HEAD.size, 1)
        if len(head) < HEAD.size:
            return
        (size,) = HEAD.unpack(head)
        data = b""
        while len(data) < size and (chunk := control.recv(size - len(data))):
            data += chunk
        listener = socket.socket(fileno=descriptors[0]) if descriptors else None
        try:
            answer = server.answer(json.loads(data), listener)
        except Exception as error:  # the host says which request failed
            answer = {"error": f"{type(error).__name__}: {error}"}
        reply = json.dumps(answer).encode()
        control.sendall(HEAD.pack(len(reply)) + reply)
