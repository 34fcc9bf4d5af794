"""Requests of a lease that its machine answers itself: OSWorld's or WAA's in-VM server, and WAA's evaluate server.

Mounted by `server.app` and `server.osworld.routes`. The evaluate server runs on the machine's host, where workers
cannot reach it: several of them share the machines through this server or a gateway. The routes of the in-VM server
are emulated for local desktops only.

Invariant: only the holder of the current lease reaches the machine, and only the requests of `EVALUATOR_PATHS` and
`WINDOWS_PATHS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.desktop.base import HasTaskEvaluator
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.waa_desktop import WaaDesktop
from deskhand.errors import InfrastructureError
from deskhand.server.active_leases import ActiveLease, ActiveLeases
from deskhand.server.http_errors import HttpError, reply_errors
from deskhand.server.native_api import fenced_reply

EVALUATOR_PATHS = re.compile(r"probe|setup|evaluate|task/[\w.-]{1,200}", re.ASCII)
WINDOWS_PATHS = (
    ("GET", "/probe"), ("POST", "/execute_windows"), ("POST", "/setup/close_all"), ("POST", "/setup/clear_task_files"),
)  # fmt: skip
"""Routes of WAA's in-VM server that OSWorld's does not have."""
EVALUATION_S = 300.0
"""Longest set-up or evaluation."""
_KEPT_HEADERS = ("content-type",)


def evaluator_routes(find: Callable[[Request], ActiveLease], leases: ActiveLeases) -> list[Route]:
    """Return the routes of the evaluate server below a lease. `find` returns the lease or raises `HttpError`."""

    async def handle(request: Request) -> Response:
        lease, path = find(request), request.path_params["path"]
        if (stale := fenced_reply(lease, request)) is not None:
            return stale
        if not EVALUATOR_PATHS.fullmatch(path):
            raise HttpError(404, "not a request of WAA's evaluate server: probe, setup, evaluate, task/ID")
        if not isinstance(lease.desktop, HasTaskEvaluator):
            raise HttpError(
                404, "the machines of this server have no evaluate server; start it with --machine-backend waa"
            )
        with leases.using(lease):
            client = lease.desktop.open_evaluator()
            try:
                return await _forward(client, request, f"/{path}", repeatable=True, may_take_s=EVALUATION_S)
            finally:
                await client.close()

    return [Route("/leases/{lease}/evaluator/{path:path}", reply_errors(handle), methods=["GET", "POST"])]


def windows_routes(find: Callable[[Request], AbstractContextManager[ActiveLease]], prefix: str) -> list[Route]:
    """Return the routes of `WINDOWS_PATHS`."""

    async def handle(request: Request) -> Response:
        with find(request) as lease:
            is_windows = isinstance(lease.desktop, WaaDesktop)
            reply = await forward_to_machine(lease, request, prefix) if is_windows else None
        return reply or JSONResponse({"error": "not found"}, status_code=404)

    return [Route(prefix + path, reply_errors(handle), methods=[method]) for method, path in WINDOWS_PATHS]


async def forward_to_machine(lease: ActiveLease, request: Request, prefix: str = "") -> Response | None:
    """Return the reply of a machine's own server; None for another desktop."""
    if not isinstance(lease.desktop, OsworldDesktop):
        return None
    path = request.url.path.removeprefix(prefix.format(lease=lease.id))
    client, repeatable = lease.desktop.server.client, request.method == "GET"
    return await _forward(client, request, path, repeatable=repeatable, acts=not repeatable)


async def _forward(client: RetryingClient, request: Request, path: str, **delivery: Any) -> Response:
    """Send a request on and return its reply, whatever its status; 502 if there is none."""
    headers = {name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers}
    body = {"content": await request.body(), "headers": headers, "params": dict(request.query_params)}

    def pass_on(reply: httpx2.Response) -> httpx2.Response:
        return reply

    try:
        reply = await client.send(request.method, path, parse=pass_on, **delivery, **body)
    except InfrastructureError as error:
        return JSONResponse({"error": "infrastructure", "message": str(error)}, status_code=502)
    kept = {name: reply.headers[name] for name in _KEPT_HEADERS if name in reply.headers}
    return Response(reply.content, status_code=reply.status_code, headers=kept)
