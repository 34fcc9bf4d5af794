"""Any pool over HTTP. Invariant: no request without a valid key reaches a desktop, and a lease's key opens that lease alone.

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

A template is an object with fields of `deskhand.desktop.base.Template`, each of them optional.

Without an owner's key the bridge is open to this machine: then a request must name a loopback host and come from no web page.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from deskhand.bridge.direct import routes as direct_routes
from deskhand.bridge.direct import template_of
from deskhand.bridge.keys import digest, is_loopback, matches, presented
from deskhand.bridge.leases import BridgeLeases, Held
from deskhand.bridge.limits import BoundedBody, Bounds
from deskhand.bridge.osworld.routes import routes as osworld_routes
from deskhand.bridge.refusal import Refused
from deskhand.bridge.replies import Replies
from deskhand.desktop import wire
from deskhand.desktop.base import Template
from deskhand.errors import ConfigError, InfrastructureError

log = structlog.get_logger()
LONGEST_WAIT_S = 600.0
DEFAULT_WAIT_S = 60.0
Handler = Callable[[Request], Awaitable[Response]]


def create_app(book: BridgeLeases, owner_key: str | None, bounds: Bounds | None = None) -> ASGIApp:
    """The application for the leases of `book`. With `owner_key` None it is open to this machine."""
    kept = digest(owner_key) if owner_key is not None else None
    granted = Replies()

    def admitted(request: Request, lease: bytes | None) -> bool:
        """Whether the request shows the owner's key, or the one whose digest `lease` is."""
        if kept is None:
            _demand_local(request)
            return True
        key = presented(request.headers)
        of_owner, of_lease = matches(key, kept), matches(key, lease or kept)
        return bool(key) and (of_owner or of_lease)

    def demand_owner(request: Request) -> None:
        if not admitted(request, None):
            raise _unauthorised()

    def found(request: Request, held: Held | None, over: bytes | None = None) -> Held:
        """`held`, for who has its key. That a lease is over is told to who had its key, and to the owner."""
        if not admitted(request, held.kept if held is not None else over):
            raise _unauthorised()
        if held is None:
            raise Refused(410, "this lease is over, or never was; take a new one with POST /leases")
        return held

    def by_path(request: Request) -> Held:
        lease = request.path_params["lease"]
        return found(request, book.find(lease), book.over(lease))

    def by_door(request: Request) -> Held:
        return found(request, book.at_door(_port(request.scope)))

    async def take(request: Request) -> Response:
        demand_owner(request)
        template, wait_s = _wanted(await _object(request), book.pool.template)

        async def grant() -> Response:
            try:
                held, key = await book.take(template, wait_s)
            except Refused as refusal:
                return refusal.response()
            return JSONResponse(_described(held, book) | {"key": key}, status_code=201)

        return await granted.once(request.headers.get(wire.REQUEST_HEADER), grant)

    async def listed(request: Request) -> Response:
        demand_owner(request)
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
    front = BoundedBody(
        Starlette(routes=own + direct_routes(by_path, book) + osworld_routes(by_path, book, "/leases/{lease}/osworld")),
        bounds or Bounds(),
    )
    door = BoundedBody(Starlette(routes=osworld_routes(by_door, book)), bounds or Bounds())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (door if scope["type"] == "http" and _port(scope) in book.doors else front)(scope, receive, send)

    return app


def _port(scope: Any) -> int:
    """The port of this machine that the request came in at."""
    return (scope.get("server") or ("", 0))[1] or 0


def _demand_local(request: Request) -> None:
    """A web page of another site must not reach an open bridge, under whatever name it calls this machine."""
    if "origin" in request.headers or not is_loopback(request.url.hostname or ""):
        raise Refused(403, "without a key the bridge answers only to programs of this machine that call it by a loopback name")


def _unauthorised() -> Refused:
    return Refused(401, "a valid key is needed: Authorization: Bearer <key>", {"www-authenticate": "Bearer"})


def _answer(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Refused as refusal:
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


async def _object(request: Request) -> dict[str, Any]:
    raw = await request.body()
    try:
        body = json.loads(raw) if raw else {}
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body


def _wanted(body: dict[str, Any], otherwise: Template) -> tuple[Template | None, float]:
    """The template and the time to wait. Raises `Refused` (400)."""
    if extra := set(body) - {"template", "wait_s"}:
        raise Refused(400, f"unknown keys: {', '.join(sorted(map(str, extra)))}; known: template, wait_s")
    wait_s = body.get("wait_s", DEFAULT_WAIT_S)
    if isinstance(wait_s, bool) or not isinstance(wait_s, (int, float)) or not 0 <= wait_s <= LONGEST_WAIT_S:
        raise Refused(400, f"wait_s must be a number of seconds from 0 to {LONGEST_WAIT_S:g}")
    asked = body.get("template")
    return (None if asked is None else template_of(asked, otherwise)), wait_s


def _described(held: Held, book: BridgeLeases) -> dict[str, Any]:
    width, height = held.size
    return {
        "lease": held.id,
        "epoch": held.lease.epoch,
        "template": held.template.name,
        "width": width,
        "height": height,
        "port": held.port or None,
        "idle_s": book.idle_s,
    }
