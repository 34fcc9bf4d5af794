"""HTTP application of the desktop server.

Built by `server.process.serve_pool`; `server.auth` checks the key before a request is read. docs/desktop-server.md has
the requests, their keys, bodies and replies. A lease's own port serves OSWorld's protocol at the root, for clients that
know only host and port.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from deskhand.desktop import frame_codec
from deskhand.errors import InfrastructureError
from deskhand.server.active_leases import ActiveLease, ActiveLeases
from deskhand.server.auth import LeaseAuth, port_of
from deskhand.server.http_errors import HttpError, reply_errors
from deskhand.server.idempotency import ReplyCache
from deskhand.server.json_body import JsonBody, desktop_spec_from_json
from deskhand.server.machine_proxy import evaluator_routes
from deskhand.server.native_api import routes as native_routes
from deskhand.server.osworld.routes import routes as osworld_routes
from deskhand.server.request_limits import RequestLimits, SizeLimitedBody

MAX_WAIT_S = 600.0


class _LeaseRequest(JsonBody):
    spec: dict[str, Any] | None = None
    wait_s: float = Field(60.0, ge=0, le=MAX_WAIT_S)


def create_app(leases: ActiveLeases, auth: LeaseAuth, limits: RequestLimits | None = None) -> ASGIApp:
    """Return the application that serves `leases`."""
    by_path, grants = auth.by_path, ReplyCache()

    async def create_lease(request: Request) -> Response:
        auth.require_admin(request)
        body = _LeaseRequest.parse(await request.body())
        spec = leases.pool.spec
        if body.spec is not None:
            spec = desktop_spec_from_json(body.spec, spec)
        request_id = request.headers.get(frame_codec.REQUEST_HEADER)

        async def grant() -> Response:
            try:
                lease, key = await leases.acquire(spec, body.wait_s)
            except HttpError as error:
                return error.response()
            if await request.is_disconnected():
                if not request_id:  # no retry can fetch the key
                    await leases.release(lease, "client disconnected")
                    return Response(status_code=499)
                leases.release_unclaimed(lease)
            return JSONResponse(_lease_to_json(lease, leases) | {"key": key}, status_code=201)

        return await grants.run_once(request_id, grant)

    async def list_leases(request: Request) -> Response:
        auth.require_admin(request)
        listed = [_lease_to_json(lease, leases) for lease in leases]
        return JSONResponse({"leases": listed, "size": leases.pool.size, "backend": leases.pool.backend})

    async def renew(request: Request) -> Response:
        with leases.using(by_path(request)) as lease:
            return JSONResponse(_lease_to_json(lease, leases))

    async def release(request: Request) -> Response:
        lease = by_path(request)
        await leases.release(lease, "requested")
        return JSONResponse({"lease": lease.id, "over": True})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    lease_routes = [
        Route("/health", health),
        Route("/leases", reply_errors(create_lease, _outage_reply), methods=["POST"]),
        Route("/leases", reply_errors(list_leases, _outage_reply), methods=["GET"]),
        Route("/leases/{lease}", reply_errors(release, _outage_reply), methods=["DELETE"]),
        Route("/leases/{lease}/renew", reply_errors(renew, _outage_reply), methods=["POST"]),
    ]
    osworld = osworld_routes(lambda request: leases.using(by_path(request)), "/leases/{lease}/osworld")
    routes = [*lease_routes, *native_routes(by_path, leases), *evaluator_routes(by_path, leases), *osworld]
    main_port = SizeLimitedBody(Starlette(routes=routes), limits)
    at_port = osworld_routes(lambda request: leases.using(auth.by_port(request)))
    lease_ports = SizeLimitedBody(Starlette(routes=at_port), limits)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_lease_port = scope["type"] == "http" and port_of(scope) in leases.ports
        await (lease_ports if at_lease_port else main_port)(scope, receive, send)

    return app


def _outage_reply(error: Exception) -> Response | None:
    return JSONResponse({"error": str(error)}, status_code=503) if isinstance(error, InfrastructureError) else None


def _lease_to_json(lease: ActiveLease, leases: ActiveLeases) -> dict[str, Any]:
    width, height = lease.size
    return {
        "lease": lease.id,
        "epoch": lease.pool_lease.epoch,
        "spec": lease.spec.name,
        "width": width,
        "height": height,
        "port": lease.port or None,
        "tunnels": leases.tunnel_port or None,
        "backend": leases.pool.backend,
        "idle_s": leases.idle_s,
    }
