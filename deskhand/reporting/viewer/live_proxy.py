"""Requests about live desktops, passed on to the process that runs them: `LiveProxy`. Used by `viewer.app`.

A run's process is found by its file `live.json` (`server.live_app`), which is read again when the process has changed.

Invariant: the process's token goes to this machine's loopback interface alone, and never to the browser.
"""

from __future__ import annotations

import json
import secrets
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
from starlette.requests import Request
from starlette.responses import Response

from deskhand.reporting.viewer.replies import NotFound
from deskhand.server.live_app import KEY_HEADER, LIVE_FILE, create_live_app
from deskhand.server.live_desktops import LiveDesktops
from deskhand.server.loopback import CONTROL_HEADER

TIMEOUT_S = 60.0
_NOT_RUNNING = "no process works on this run now; its desktops are shown while it trains or evaluates"


class LiveProxy:
    """Forwards requests to the desktops of one process. Use `of_run` or `of_process`."""

    def __init__(self, folder: Path | None, http: httpx2.AsyncClient, token: str = "") -> None:
        self._folder, self._http, self._token = folder, http, token

    @classmethod
    def of_run(cls, folder: Path) -> LiveProxy:
        """Return the proxy of whatever process works on the run now."""
        # Proxy variables of the environment must not apply, and certificates are not needed.
        return cls(folder, httpx2.AsyncClient(timeout=TIMEOUT_S, trust_env=False, verify=False))

    @classmethod
    def of_process(cls, desktops: LiveDesktops) -> LiveProxy:
        """Return the proxy of desktops of this process."""
        token = secrets.token_urlsafe(32)
        transport = httpx2.ASGITransport(create_live_app(desktops, token))
        return cls(None, httpx2.AsyncClient(transport=transport, timeout=TIMEOUT_S), token)

    async def forward(self, request: Request, path: str) -> Response:
        """Return the process's reply to a request; `path` names it with placeholders of the request's own path."""
        address, token = self._where()
        given = {name: quote(str(value), safe="") for name, value in request.path_params.items()}
        headers = {"Authorization": f"Bearer {token}", CONTROL_HEADER: token}
        if key := request.headers.get(KEY_HEADER):
            headers[KEY_HEADER] = key
        try:
            reply = await self._http.request(
                request.method,
                f"{address}/api{path.format(**given)}",
                params=dict(request.query_params),
                content=await request.body(),
                headers=headers,
            )
        except httpx2.TimeoutException:
            raise NotFound("the process of this run does not answer; its machine may be busy") from None
        except httpx2.TransportError:
            raise NotFound(_NOT_RUNNING) from None
        if reply.status_code == 401:  # another program has the port of a process that was killed
            raise NotFound(_NOT_RUNNING)
        return Response(reply.content, reply.status_code, media_type=reply.headers.get("content-type"))

    def _where(self) -> tuple[str, str]:
        """Return address and token of the process. Raises `NotFound`."""
        if self._folder is None:
            return "http://127.0.0.1", self._token
        try:
            found: Any = json.loads((self._folder / LIVE_FILE).read_bytes())
            host, port, token = str(found["host"]), int(found["port"]), str(found["token"])
        except (OSError, ValueError, TypeError, LookupError):
            raise NotFound(_NOT_RUNNING) from None
        if host != socket.gethostname():
            raise NotFound(f"the run is in progress on {host}; start deskhand view there and forward its port")
        return f"http://127.0.0.1:{port}", token
