"""Any pool over HTTP. Invariant: who asks is looked at (`admission.py`) before what is asked for, and every answer is in words.

| route                          | key            | body                                                               |
|--------------------------------|----------------|--------------------------------------------------------------------|
| `POST /leases`                 | owner's        | `{"template"?, "wait_s"?}` -> the lease and its key                |
| `GET /leases`                  | owner's        | -> `{"leases": [...], "size"}`, without keys                       |
| `POST /leases/{lease}/renew`   | lease, owner's | -> the lease; any other use of a lease renews it too               |
| `DELETE /leases/{lease}`       | lease, owner's | -> `{"lease", "over": true}`                                       |
| `/leases/{lease}/desktop/...`, `/leases/{lease}/events` | lease, owner's | Deskhand's own dialect (`direct`)     |
| `/leases/{lease}/osworld/...`  | lease, owner's | OSWorld's in-VM server (`osworld.routes`)                          |
| `/...` at a lease's own port   | lease, owner's | the same at the root, for clients that know only a host and a port |
| `GET /health`                  | none           | -> `{"status": "ok"}`                                              |
| `CONNECT lease:port` at the port of the tunnels | lease, owner's | bytes of a connection to the guest (`tunnel.py`) |

A template is an object with fields of `deskhand.desktop.base.Template`, each of them optional.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from deskhand.desktop import frame_codec
from deskhand.desktop.base import DesktopSpec
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.server.active_leases import ActiveLease, ActiveLeases
from deskhand.server.auth import LeaseAuth, port_of
from deskhand.server.http_errors import HttpError
from deskhand.server.idempotency import ReplyCache
from deskhand.server.json_body import number, object_of
from deskhand.server.native_api import desktop_spec_from_json
from deskhand.server.native_api import routes as direct_routes
from deskhand.server.osworld.routes import routes as osworld_routes
from deskhand.server.request_limits import RequestLimits, SizeLimitedBody

log = structlog.get_logger()
LONGEST_WAIT_S = 600.0
DEFAULT_WAIT_S = 60.0
LeaseHandler = Callable[[Request], Awaitable[Response]]


def create_app(book: ActiveLeases, admission: LeaseAuth, bounds: RequestLimits | None = None) -> ASGIApp:
    """The application for the leases of `book`."""
    by_path, by_door, granted = admission.by_path, admission.by_port, ReplyCache()

    async def take(request: Request) -> Response:
        admission.require_admin(request)
        template, wait_s = _wanted(object_of(await request.body(), {"template", "wait_s"}), book.pool.template)

        asked = request.headers.get(frame_codec.REQUEST_HEADER)

        async def grant() -> Response:
            try:
                held, key = await book.acquire(template, wait_s)
            except HttpError as refusal:
                return refusal.response()
            if await request.is_disconnected():
                if not asked:
                    await book.end(held, "its client is gone")  # nobody else will ever have its key
                    return Response(status_code=499)
                book.release_unclaimed(held)
            return JSONResponse(_described(held, book) | {"key": key}, status_code=201)

        return await granted.run_once(asked, grant)

    async def listed(request: Request) -> Response:
        admission.require_admin(request)
        return JSONResponse({"leases": [_described(held, book) for held in book], "size": book.pool.size})

    async def renew(request: Request) -> Response:
        with book.using(by_path(request)) as held:
            return JSONResponse(_described(held, book))

    async def end(request: Request) -> Response:
        held = by_path(request)
        await book.end(held, "asked for")
        return JSONResponse({"lease": held.id, "over": True})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    own = [
        Route("/health", health),
        Route("/leases", _answer(take), methods=["POST"]),
        Route("/leases", _answer(listed), methods=["GET"]),
        Route("/leases/{lease}", _answer(end), methods=["DELETE"]),
        Route("/leases/{lease}/renew", _answer(renew), methods=["POST"]),
    ]
    front = SizeLimitedBody(
        Starlette(routes=own + direct_routes(by_path, book) + osworld_routes(by_path, book, "/leases/{lease}/osworld")),
        bounds or RequestLimits(),
    )
    door = SizeLimitedBody(Starlette(routes=osworld_routes(by_door, book)), bounds or RequestLimits())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (door if scope["type"] == "http" and port_of(scope) in book.doors else front)(scope, receive, send)

    return app


def _answer(handler: LeaseHandler) -> LeaseHandler:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except HttpError as refusal:
            return refusal.response()
        except ConfigError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        except InfrastructureError as error:
            return JSONResponse({"error": str(error)}, status_code=503)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:  # the client must get an answer, the log the cause
            log.exception("bridge.failed", path=request.url.path)
            return JSONResponse({"error": "the bridge failed; its log says why"}, status_code=500)

    return answer


def _wanted(body: dict[str, Any], otherwise: DesktopSpec) -> tuple[DesktopSpec | None, float]:
    """The template and the time to wait. Raises `Refused` (400)."""
    wait_s = number(body.get("wait_s", DEFAULT_WAIT_S), "wait_s", 0, LONGEST_WAIT_S)
    asked = body.get("template")
    return (None if asked is None else desktop_spec_from_json(asked, otherwise)), wait_s


def _described(held: ActiveLease, book: ActiveLeases) -> dict[str, Any]:
    width, height = held.size
    return {
        "lease": held.id,
        "epoch": held.lease.epoch,
        "template": held.template.name,
        "width": width,
        "height": height,
        "port": held.port or None,
        "tunnels": book.tunnels or None,
        "idle_s": book.idle_s,
    }
