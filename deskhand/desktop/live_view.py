"""A desktop in a web page: its screen, and the mouse and keyboard of whoever watches.

Invariant: it listens on the loopback only, and answers nobody who does not hold its token.

The token stands in the fragment of the address, which browsers do not send; the page sends it in a header.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import secrets
import socket
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from deskhand.actions.ops import Button, Click, Drag, Key, Op, Point, Scroll, Type, screen_px
from deskhand.desktop.applications.profile import Profile
from deskhand.desktop.base import Desktop, DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import AgentError, ConfigError, InfrastructureError

FRAME_PAUSE_S = 0.15
LONGEST_WAIT_S = 10.0
"""A page asks again when nothing has changed for so long."""
_BUTTONS: dict[int, Button] = {0: "left", 1: "middle", 2: "right", 3: "back", 4: "forward"}
"""By their numbers in the DOM."""


class _Guard:
    """Lets through the page itself, and everything else only with the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                await JSONResponse({"error": "the token is missing or wrong"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def create_app(desktop: Desktop, template: DesktopSpec, token: str) -> Starlette:
    """The page at `/`; `/frame?after=HASH` answers with a PNG as soon as the screen differs; `/act` performs one thing."""
    numbers = itertools.count()
    page = resources.files("deskhand.desktop").joinpath("live.html").read_text(encoding="utf-8")

    async def index(request: Request) -> Response:
        return HTMLResponse(
            page, headers={"Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src blob:"}
        )

    async def frame(request: Request) -> Response:
        deadline = asyncio.get_running_loop().time() + LONGEST_WAIT_S
        while True:
            now = await desktop.observe()
            if now.content_hash != request.query_params.get("after"):
                png = await asyncio.to_thread(now.png)
                return Response(
                    png, media_type="image/png", headers={"X-Frame": now.content_hash, "Cache-Control": "no-store"}
                )
            if asyncio.get_running_loop().time() > deadline:
                return Response(status_code=204)
            await asyncio.sleep(FRAME_PAUSE_S)

    async def act(request: Request) -> Response:
        try:
            ops = ops_from_event(await request.json(), template)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            return JSONResponse({"error": f"not understood: {error}"}, 400)
        await desktop.perform(ops, action_id=f"live-{next(numbers)}")
        return Response(status_code=204)

    async def failed(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 400 if isinstance(error, AgentError) else 503)

    handler: Callable[[Request, Exception], Awaitable[Response]] = failed
    return Starlette(
        routes=[Route("/", index), Route("/frame", frame), Route("/act", act, methods=["POST"])],
        middleware=[Middleware(_Guard, token=token)],
        exception_handlers={AgentError: handler, InfrastructureError: handler},
    )


def ops_from_event(said: dict[str, Any], template: DesktopSpec) -> list[Op]:
    """One op for what the page said. Raises `ValueError`, `TypeError`, `KeyError` or `OverflowError` for what no page says."""
    space = screen_px(template.width, template.height)

    def point(name: str) -> Point:
        x, y = said[name]
        return Point(int(x), int(y), space)

    match said["kind"]:
        case "click":
            return [Click(point("at"), button=_BUTTONS[int(said["button"])], count=int(said["count"]))]
        case "drag":
            return [Drag((point("from"), point("at")))]
        case "scroll":
            return [Scroll(dx=int(said["dx"]), dy=int(said["dy"]), point=point("at"))]
        case "type":
            return [Type(str(said["text"]))]
        case "key":
            return [Key(tuple(str(key) for key in said["keys"]))]
        case other:
            raise ValueError(f"kind {other!r}")


async def serve_live_view(template: DesktopSpec, profiles: list[Profile], port: int, limit_s: float) -> None:
    """Open a desktop with these applications, print the page's address, and serve it until Ctrl-C or `limit_s`.

    Raises `ConfigError` when the port is taken.
    """
    desktop, token = LocalDesktop(), secrets.token_urlsafe(24)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"port {port} of 127.0.0.1: {error.strerror}; choose another by --port") from error
        try:
            await desktop.reset(template)
            for profile in profiles:
                await desktop.launch(list(profile.argv))
                await desktop.wait_window(profile.window, timeout_s=60.0)
            listener.listen()  # who calls the address as soon as it is printed waits for the server
            print(f"http://127.0.0.1:{listener.getsockname()[1]}/#{token}", flush=True)
            settings = uvicorn.Config(
                create_app(desktop, template, token), log_level="warning", timeout_graceful_shutdown=1
            )
            server = uvicorn.Server(settings)
            asyncio.get_running_loop().call_later(limit_s, setattr, server, "should_exit", True)
            await server.serve(sockets=[listener])
        finally:
            await desktop.close()
