"""Built applications of CUA-Gym-Hub, served in the server process: static files, and the state behind them.

Used by `suites.web.server`. Each application has an origin of its own, such as "http://gmail.localhost:8080". Its page
reads its state at `/state` and stores it by `/post`; only a script of the page may do so, in the session of the task.
`/go`, with which a task is judged, is the host's alone. Pages load nothing from outside: no fonts, images or scripts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from deskhand.tasks.formats.cuagym_programs import HubState
from deskhand.tasks.suites.web.door import Door, Headers

HOST_ONLY = re.compile(r"/(go($|/)|files/)")
"""Paths of the hub's own servers that guests do not get. Pages such as "/goals" and "/files" are the applications'."""
PAGE_ACTIONS = ("set", "set_current")
_FROM_PAGE = {b"sec-fetch-site": b"same-origin", b"sec-fetch-dest": b"empty"}
"""Headers of a request of a page's own script; neither scripts nor people can set them."""


class HubApp(Door):
    """One application of one desktop. `dist` is the folder that its build wrote."""

    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "font-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'self'; frame-ancestors 'none'"
    )
    """Scripts are the application's own files, so `javascript:` addresses, inline handlers and frames run none."""
    max_body_bytes = 8 << 20

    def __init__(self, dist: Path, entry: str, start: str, state: HubState) -> None:
        super().__init__(entry, start)
        self._dist = dist.resolve()
        self.state = state

    def accepts_request(self, scope: Scope, headers: Headers) -> bool:
        path, is_from_page = scope["path"], all(headers.get(name) == value for name, value in _FROM_PAGE.items())
        if HOST_ONLY.match(path):
            return False
        if path in ("/state", "/post"):
            return is_from_page and scope["method"] == ("POST" if path == "/post" else "GET")
        return scope["method"] in ("GET", "HEAD")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        sid = parse_qs(scope["query_string"].decode("latin-1")).get("sid", [None])[0]
        is_own = sid == self.state.sid
        if scope["path"] == "/state":
            stored = self.state.current if is_own else None
            response: Response = JSONResponse(
                {"stored_state": stored, "has_custom_state": stored is not None, "sid": sid}
            )
        elif scope["path"] == "/post":
            response = self._stored(await Request(scope, receive).body(), is_own=is_own)
        else:
            file = (self._dist / scope["path"].lstrip("/")).resolve()
            is_asset = file.is_relative_to(self._dist) and file.is_file()
            response = FileResponse(file if is_asset else self._dist / "index.html")
        response.headers["X-Content-Type-Options"] = "nosniff"
        await response(scope, receive, send)

    def _stored(self, body: bytes, *, is_own: bool) -> Response:
        """Store what a page sent. Another session, such as that of a new tab, has no state here: it is dropped."""
        try:
            sent = json.loads(body)
            if not isinstance(sent, dict) or sent.get("action", "set") not in PAGE_ACTIONS:
                raise ValueError("unknown action")
            if is_own:
                self.state.post({**sent, "action": "set_current"})
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse({"success": True})


class HubSite:
    """The applications of one desktop, by the first part of their host names.

    `apps` has for each "dist" (folder), "start" (path) and "state" (see `HubState.data`).
    """

    def __init__(self, apps: dict[str, dict[str, Any]], entry: str) -> None:
        self._apps = {
            name: HubApp(Path(app["dist"]), entry, app["start"], HubState(**app["state"])) for name, app in apps.items()
        }
        self._num_unknown = 0

    @property
    def state(self) -> dict[str, Any]:
        """`HubState.data` by application."""
        return {name: app.state.data() for name, app in self._apps.items()}

    @state.setter
    def state(self, states: dict[str, Any]) -> None:
        for name, state in states.items():
            self._apps[name].state = HubState(**state)

    @property
    def is_entered(self) -> bool:
        return all(app.is_entered for app in self._apps.values())

    @property
    def num_refused(self) -> int:
        return self._num_unknown + sum(app.num_refused for app in self._apps.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1").split(":")[0]
        app = self._apps.get(host.removesuffix(".localhost"))
        if app is None:
            self._num_unknown += 1
            await Response("refused\n", status_code=403)(scope, receive, send)
        else:
            await app(scope, receive, send)
