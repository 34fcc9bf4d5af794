"""Live view: a desktop's screen in a web page, with mouse and keyboard.

Used by `deskhand desktop open` through `serve_live_view`. It listens on the loopback interface only, and requests other
than the page itself need a token. The token is in the URL fragment, which browsers do not send; the page sends it in a
header.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import secrets
import socket
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

FRAME_INTERVAL_S = 0.15
MAX_POLL_S = 10.0
"""Duration of a long poll for a changed screen."""
_BUTTONS: dict[int, Button] = {0: "left", 1: "middle", 2: "right", 3: "back", 4: "forward"}
"""Mouse buttons by DOM number."""


class _TokenAuth:
    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/":
            received = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(received, self._expected):
                await JSONResponse({"error": "missing or wrong token"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def create_app(desktop: Desktop, spec: DesktopSpec, token: str) -> Starlette:
    """Build the app: `/` is the page, `/frame?after=HASH` long-polls for a changed screen, `/act` performs an event."""
    action_numbers = itertools.count()
    page = resources.files("deskhand.desktop").joinpath("live_view.html").read_text(encoding="utf-8")

    async def index(request: Request) -> Response:
        policy = "default-src 'self' 'unsafe-inline'; img-src blob:"
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    async def frame(request: Request) -> Response:
        deadline = asyncio.get_running_loop().time() + MAX_POLL_S
        while True:
            screen = await desktop.observe()
            if screen.content_hash != request.query_params.get("after"):
                png = await asyncio.to_thread(screen.png)
                headers = {"X-Frame": screen.content_hash, "Cache-Control": "no-store"}
                return Response(png, media_type="image/png", headers=headers)
            if asyncio.get_running_loop().time() > deadline:
                return Response(status_code=204)
            await asyncio.sleep(FRAME_INTERVAL_S)

    async def act(request: Request) -> Response:
        try:
            ops = ops_from_event(await request.json(), spec)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            return JSONResponse({"error": f"invalid event: {error}"}, 400)
        await desktop.perform(ops, action_id=f"live-{next(action_numbers)}")
        return Response(status_code=204)

    async def on_error(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 400 if isinstance(error, AgentError) else 503)

    handlers: dict[Any, Any] = dict.fromkeys((AgentError, InfrastructureError), on_error)
    return Starlette(
        routes=[Route("/", index), Route("/frame", frame), Route("/act", act, methods=["POST"])],
        middleware=[Middleware(_TokenAuth, token=token)],
        exception_handlers=handlers,
    )


def ops_from_event(event: dict[str, Any], spec: DesktopSpec) -> list[Op]:
    """Return the ops of one page event. Raises `ValueError`, `TypeError`, `KeyError` or `OverflowError`."""
    space = screen_px(spec.width, spec.height)

    def point(name: str) -> Point:
        x, y = event[name]
        return Point(int(x), int(y), space)

    match event["kind"]:
        case "click":
            return [Click(point("at"), button=_BUTTONS[int(event["button"])], count=int(event["count"]))]
        case "drag":
            return [Drag((point("from"), point("at")))]
        case "scroll":
            return [Scroll(dx=int(event["dx"]), dy=int(event["dy"]), point=point("at"))]
        case "type":
            return [Type(str(event["text"]))]
        case "key":
            return [Key(tuple(str(key) for key in event["keys"]))]
        case other:
            raise ValueError(f"unknown event kind {other!r}")


async def serve_live_view(spec: DesktopSpec, profiles: list[Profile], port: int, limit_s: float) -> None:
    """Open a desktop with these applications, print the page's URL, and serve it until Ctrl-C or `limit_s`.

    Raises `ConfigError` if the port is taken.
    """
    desktop, token = LocalDesktop(), secrets.token_urlsafe(24)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"--port {port}: {error.strerror}; choose another port") from error
        try:
            await desktop.reset(spec)
            for profile in profiles:
                await desktop.launch(list(profile.argv))
                await desktop.wait_window(profile.window, timeout_s=60.0)
            listener.listen()  # clients that connect as soon as the URL is printed wait in the backlog
            print(f"http://127.0.0.1:{listener.getsockname()[1]}/#{token}", flush=True)
            app = create_app(desktop, spec, token)
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
            asyncio.get_running_loop().call_later(limit_s, setattr, server, "should_exit", True)
            await server.serve(sockets=[listener])
        finally:
            await desktop.close()
