"""HTTP for the watched desktops of a running process: `create_live_app`, and `serve_live` for the viewer.

`recipes.assemble` serves the desktops of a run; `reporting.viewer.live_proxy` finds them by `<run>/live.json`, a file
of mode 0600 with host, port and token of this process. It exists while the process runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from deskhand.errors import AgentError, ConfigError, DeskhandError
from deskhand.server.http_errors import HttpError
from deskhand.server.live_desktops import LiveDesktops, watch
from deskhand.server.loopback import LoopbackAccess, LoopbackServer, listen_on_loopback

log = structlog.get_logger()
LIVE_FILE = "live.json"
KEY_HEADER = "x-takeover-key"
FRAMED = "application/x-deskhand-frames"
"""Media type of `live_desktops.framed`."""


def create_live_app(desktops: LiveDesktops, token: str) -> Starlette:
    """Return the application; every request needs `token`, one that changes something in both headers."""

    async def wall(request: Request) -> Response:
        since = request.query_params.get("since", "0")
        if not (since.isascii() and since.isdigit() and len(since) < 20):
            raise HttpError(400, f"since: must be a number, got {since[:50]}")
        return Response(await desktops.wall(int(since)), media_type=FRAMED)

    async def one(request: Request) -> Response:
        desktop = desktops.find(request.path_params["desktop"])
        found = await watch(desktop, request.query_params.get("after", ""), _key(request))
        return Response(found, media_type=FRAMED)

    async def take_over(request: Request) -> Response:
        return JSONResponse({"key": desktops.find(request.path_params["desktop"]).take_over()})

    async def act(request: Request) -> Response:
        desktop = desktops.find(request.path_params["desktop"])
        try:
            event = await request.json()
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"invalid event: {error}") from error
        await desktop.act(_key(request), event)
        return Response(status_code=204)

    async def release(request: Request) -> Response:
        desktops.find(request.path_params["desktop"]).release(_key(request))
        return Response(status_code=204)

    routes = [
        Route("/wall", wall),
        Route("/desktops/{desktop}", one),
        Route("/desktops/{desktop}/takeover", take_over, methods=["POST"]),
        Route("/desktops/{desktop}/act", act, methods=["POST"]),
        Route("/desktops/{desktop}/release", release, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((HttpError, DeskhandError), _on_error)
    access = Middleware(LoopbackAccess, token=token, control=token)
    return Starlette(routes=[Mount("/api", routes=routes)], middleware=[access], exception_handlers=handlers)


def _key(request: Request) -> str:
    return request.headers.get(KEY_HEADER, "")


def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HttpError):
        return error.response()
    status = 400 if isinstance(error, AgentError | ConfigError) else 503
    return JSONResponse({"error": " ".join(str(error).split())}, status)


@asynccontextmanager
async def serve_live(desktops: LiveDesktops, folder: Path) -> AsyncIterator[None]:
    """Serve the desktops of the run in `folder` inside the context.

    A failure to do so is logged: a run never ends because it cannot be watched.
    """
    token, path, listener = secrets.token_urlsafe(32), folder / LIVE_FILE, None
    try:
        listener = listen_on_loopback(0)
        where = {"host": socket.gethostname(), "port": listener.getsockname()[1], "token": token, "pid": os.getpid()}
        await asyncio.to_thread(_write_private, path, json.dumps(where))
    except (ConfigError, OSError) as error:
        log.warning("live.unavailable", file=str(path), error=" ".join(str(error).split()))
        if listener is not None:
            listener.close()
            listener = None
    if listener is None:
        yield
        return
    server = LoopbackServer(create_live_app(desktops, token), handles_signals=False)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        with suppress(OSError):
            path.unlink()
        with suppress(asyncio.CancelledError):
            await serving
        listener.close()


def _write_private(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)
