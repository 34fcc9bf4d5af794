"""Native HTTP API of a leased desktop: the `Desktop` protocol over JSON and raw frames.

Used by `desktop.remote.server_desktop`. Invariant: a repeated request is performed once, and a request with a stale
epoch never.

`_ROUTES` lists the routes under `/leases/{lease}/desktop`; docs/desktop-server.md has their bodies and replies.
Program output is base64. Frames and errors are encoded by `desktop.frame_codec`. `x-deskhand-base` or `?base=<hash>`
requests the difference from the last frame, `x-deskhand-epoch` is the lease's epoch, and `x-deskhand-request`
identifies a request that acts.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import structlog
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deskhand.actions.serialization import op_from_json
from deskhand.desktop import frame_codec
from deskhand.desktop.base import CommandResult, Frame, HasShell, Window
from deskhand.errors import ConfigError
from deskhand.server.active_leases import ActiveLease, ActiveLeases
from deskhand.server.http_errors import HttpError, reply_errors
from deskhand.server.json_body import JsonBody, desktop_spec_from_json
from deskhand.server.lease_events import MAX_STREAMS

log = structlog.get_logger()
Handler = Callable[[ActiveLease, Request], Awaitable[Response]]
LeaseFinder = Callable[[Request], ActiveLease]

MAX_TIMEOUT_S = 3600.0
MAX_EVENT_ID_DIGITS = 18


class _Reset(JsonBody):
    spec: dict[str, Any]


class _Perform(JsonBody):
    ops: list[dict[str, Any]]
    action_id: str = Field(max_length=256)


class _Launch(JsonBody):
    argv: list[str]
    env: dict[str, str] | None = None
    cwd: str | None = None


class _Run(_Launch):
    timeout_s: float


class _Shell(JsonBody):
    command: str
    timeout_s: float = 30.0


class _Open(JsonBody):
    path: str


class _WaitWindow(JsonBody):
    match: str
    timeout_s: float
    count: int


class _OnWindow(JsonBody):
    window: Window


class _PlaceWindow(_OnWindow):
    x: int
    y: int
    width: int | None = None
    height: int | None = None


def routes(find: LeaseFinder, leases: ActiveLeases) -> list[Route]:
    """Return the routes of the table. `find` returns the lease of a request or raises `HttpError`."""

    async def stream_events(request: Request) -> Response:
        events = find(request).events
        if events.num_streams >= MAX_STREAMS:
            raise HttpError(429, f"this lease already has {MAX_STREAMS} event listeners", {"retry-after": "10"})
        last = request.headers.get("last-event-id", "")
        after = int(last) if last.isdecimal() and len(last) <= MAX_EVENT_ID_DIGITS else 0
        return StreamingResponse(events.stream(after), media_type="text/event-stream")

    return [
        Route("/leases/{lease}/events", reply_errors(stream_events), methods=["GET"]),
        *(
            Route("/leases/{lease}/desktop" + path, _fenced(handler, find, leases), methods=[method])
            for method, path, handler in _ROUTES
        ),
    ]


def _fenced(handler: Handler, find: LeaseFinder, leases: ActiveLeases) -> Callable[[Request], Awaitable[Response]]:
    """Reject stale epochs and run a request that acts once."""

    async def handle(request: Request) -> Response:
        try:
            lease = find(request)
        except HttpError as error:
            if error.status != 410:
                raise
            return _error("over", error.message)
        if (stale := fenced_reply(lease, request)) is not None:
            return stale
        if request.method == "POST":
            await request.body()  # read it all first: a started action completes even if the client disconnects

        async def act() -> Response:
            try:
                return await handler(lease, request)
            except HttpError:
                raise
            except Exception as error:
                code = frame_codec.error_code(error)
                if code is None:
                    log.exception("server.failed", endpoint=handler.__name__)
                    code = "infrastructure" if request.method == "GET" else "unknown"  # it may have acted before
                    return _error(code, "internal server error; see the server log")
                return _error(code, str(error))

        with leases.using(lease):
            if request.method != "POST" or handler is perform:  # the desktop deduplicates actions by id
                return await act()
            return await lease.replies.run_once(request.headers.get(frame_codec.REQUEST_HEADER), act)

    return reply_errors(handle)


def fenced_reply(lease: ActiveLease, request: Request) -> Response | None:
    """Return the refusal of a request with the epoch of an earlier lease; None for others."""
    epoch = request.headers.get(frame_codec.EPOCH_HEADER)
    if epoch is None or epoch == str(lease.pool_lease.epoch):
        return None
    return _error("fenced", f"stale epoch {epoch[:20]}; this lease has epoch {lease.pool_lease.epoch}")


def _error(code: str, message: str) -> Response:
    return JSONResponse({"error": code, "message": message}, status_code=frame_codec.ERRORS[code][0])


async def reset(lease: ActiveLease, request: Request) -> Response:
    spec = desktop_spec_from_json(_Reset.parse(await request.body()).spec, lease.spec)
    frame = await lease.desktop.reset(spec)
    lease.on_reset(spec)
    lease.events.publish("reset", sequence=frame.sequence)
    return await _frame(lease, request, frame)


async def perform(lease: ActiveLease, request: Request) -> Response:
    body = _Perform.parse(await request.body())
    ops = [op_from_json(op, *lease.size) for op in body.ops]
    frame = await lease.desktop.perform(ops, action_id=body.action_id)
    event = {"sequence": frame.sequence, "settle_ms": round(frame.settle_ms, 3), "settle_reason": frame.settle_reason}
    lease.events.publish("performed", action_id=body.action_id, **event)
    return await _frame(lease, request, frame)


async def observe(lease: ActiveLease, request: Request) -> Response:
    return await _frame(lease, request, await lease.desktop.observe())


async def _frame(lease: ActiveLease, request: Request, frame: Frame) -> Response:
    base_hash = request.headers.get(frame_codec.BASE_HEADER) or request.query_params.get("base")
    last = lease.last_frame
    base = last if last is not None and last.content_hash == base_hash else None
    lease.last_frame = frame
    if frame_codec.is_delta_of(frame, base):  # cheap: no comparison of screens
        header, body = frame_codec.encode_frame(frame, base)
    else:
        header, body = await asyncio.to_thread(frame_codec.encode_frame, frame, base)
    return Response(body, media_type="application/octet-stream", headers={frame_codec.FRAME_HEADER: header})


async def run(lease: ActiveLease, request: Request) -> Response:
    body = _Run.parse(await request.body())
    timeout_s = min(body.timeout_s, MAX_TIMEOUT_S)
    return _command_reply(await lease.desktop.run(body.argv, timeout_s=timeout_s, env=body.env, cwd=body.cwd))


def _command_reply(done: CommandResult) -> Response:
    stdout, stderr = (base64.b64encode(data).decode() for data in (done.stdout, done.stderr))
    return JSONResponse({"returncode": done.returncode, "stdout": stdout, "stderr": stderr})


def _with_shell(lease: ActiveLease) -> HasShell:
    if not isinstance(lease.desktop, HasShell):
        raise ConfigError("the desktops of this server run no command lines")
    return lease.desktop


async def shell(lease: ActiveLease, request: Request) -> Response:
    body = _Shell.parse(await request.body())
    return _command_reply(await _with_shell(lease).shell(body.command, timeout_s=min(body.timeout_s, MAX_TIMEOUT_S)))


async def launch_shell(lease: ActiveLease, request: Request) -> Response:
    await _with_shell(lease).launch_shell(_Shell.parse(await request.body()).command)
    return JSONResponse({})


async def open_file(lease: ActiveLease, request: Request) -> Response:
    await _with_shell(lease).open_file(_Open.parse(await request.body()).path)
    return JSONResponse({})


async def launch(lease: ActiveLease, request: Request) -> Response:
    body = _Launch.parse(await request.body())
    return JSONResponse({"pid": await lease.desktop.launch(body.argv, env=body.env, cwd=body.cwd)})


async def pull(lease: ActiveLease, request: Request) -> Response:
    data = await lease.desktop.pull(request.query_params.get("path", ""))
    return Response(data, media_type="application/octet-stream")


async def push(lease: ActiveLease, request: Request) -> Response:
    await lease.desktop.push(request.query_params.get("path", ""), await request.body())
    return JSONResponse({})


async def folder(lease: ActiveLease, request: Request) -> Response:
    return JSONResponse({"names": await lease.desktop.listdir(request.query_params.get("path", ""))})


async def accessibility(lease: ActiveLease, request: Request) -> Response:
    return JSONResponse({"tree": await lease.desktop.accessibility_tree()})


async def windows(lease: ActiveLease, request: Request) -> Response:
    return JSONResponse({"windows": [asdict(window) for window in await lease.desktop.windows()]})


async def wait_window(lease: ActiveLease, request: Request) -> Response:
    body = _WaitWindow.parse(await request.body())
    timeout_s = min(body.timeout_s, MAX_TIMEOUT_S)
    found = await lease.desktop.wait_window(body.match, timeout_s=timeout_s, count=body.count)
    return JSONResponse({"windows": [asdict(window) for window in found]})


async def place_window(lease: ActiveLease, request: Request) -> Response:
    body = _PlaceWindow.parse(await request.body())
    placed = await lease.desktop.place_window(body.window, body.x, body.y, body.width, body.height)
    return JSONResponse({"window": asdict(placed)})


async def activate_window(lease: ActiveLease, request: Request) -> Response:
    await lease.desktop.activate_window(_OnWindow.parse(await request.body()).window)
    return JSONResponse({})


async def close_window(lease: ActiveLease, request: Request) -> Response:
    await lease.desktop.close_window(_OnWindow.parse(await request.body()).window)
    return JSONResponse({})


async def clipboard(lease: ActiveLease, request: Request) -> Response:
    return JSONResponse({"text": await lease.desktop.clipboard(request.query_params.get("selection", "CLIPBOARD"))})


_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/reset", reset),
    ("POST", "/perform", perform),
    ("GET", "/frame", observe),
    ("POST", "/run", run),
    ("POST", "/launch", launch),
    ("POST", "/shell", shell),
    ("POST", "/shell/launch", launch_shell),
    ("POST", "/open", open_file),
    ("GET", "/file", pull),
    ("PUT", "/file", push),
    ("GET", "/folder", folder),
    ("GET", "/accessibility", accessibility),
    ("GET", "/windows", windows),
    ("POST", "/windows/wait", wait_window),
    ("POST", "/windows/place", place_window),
    ("POST", "/windows/activate", activate_window),
    ("POST", "/windows/close", close_window),
    ("GET", "/clipboard", clipboard),
)
