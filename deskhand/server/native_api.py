"""Native HTTP API of a leased desktop: the `Desktop` protocol over JSON and raw frames.

Used by `desktop.remote.server_desktop`. Invariant: a repeated request is performed once, and a request with a stale
epoch never.

| route (under `/leases/{lease}`)           | body                                        | reply
    |
|-------------------------------------------|---------------------------------------------|----------------------------------|
| `POST /desktop/reset`                     | `{"template"}`                              | a frame
    |
| `POST /desktop/perform`                   | `{"ops", "action_id"}`, JSON ops in pixels  | a frame
    |
| `GET /desktop/frame`                      |                                             | a frame
    |
| `POST /desktop/run`                       | `{"argv", "timeout_s", "env"?, "cwd"?}`     | `{"returncode", "stdout",
"stderr"}` |
| `POST /desktop/launch`                    | `{"argv", "env"?, "cwd"?}`                  | `{"pid"}`
    |
| `GET`, `PUT /desktop/file?path=`          | the file's bytes                            | the file's bytes; `{}`
    |
| `GET /desktop/folder?path=`               |                                             | `{"names"}`
    |
| `GET /desktop/accessibility`              |                                             | `{"tree"}`
    |
| `GET /desktop/windows`                    |                                             | `{"windows"}`
    |
| `POST /desktop/windows/wait`              | `{"match", "timeout_s", "count"}`           | `{"windows"}`
    |
| `POST /desktop/windows/place`             | `{"window", "x", "y", "width"?, "height"?}` | `{"window"}`
    |
| `POST /desktop/windows/activate`, `close` | `{"window"}`                                | `{}`
    |
| `GET /desktop/clipboard?selection=`       |                                             | `{"text"}`
    |
| `GET /events`                             |                                             | server-sent events
    |

Program output is base64. Frames and errors are encoded by `desktop.frame_codec`. `x-deskhand-base` or `?base=<hash>`
requests the difference from the last frame, `x-deskhand-epoch` is the lease's epoch, and `x-deskhand-request`
identifies a request that acts.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields, replace
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deskhand.actions.serialization import op_from_json
from deskhand.desktop import frame_codec
from deskhand.desktop.base import DesktopSpec, Frame, Window
from deskhand.errors import ConfigError
from deskhand.server.active_leases import ActiveLease, ActiveLeases
from deskhand.server.http_errors import HttpError
from deskhand.server.json_body import parse_json_body
from deskhand.server.lease_events import MAX_STREAMS

log = structlog.get_logger()
Handler = Callable[[ActiveLease, Request], Awaitable[Response]]
LeaseFinder = Callable[[Request], ActiveLease]

MAX_TIMEOUT_S = 3600.0
MAX_ACTION_ID_CHARS = 256
MAX_EVENT_ID_DIGITS = 18


def routes(find: LeaseFinder, leases: ActiveLeases) -> list[Route]:
    """Return the routes of the table. `find` returns the lease of a request or raises `HttpError`."""

    async def stream_events(request: Request) -> Response:
        try:
            events = find(request).events
        except HttpError as error:
            return error.response()
        if events.num_streams >= MAX_STREAMS:
            return HttpError(
                429, f"this lease already has {MAX_STREAMS} event listeners", {"retry-after": "10"}
            ).response()
        last = request.headers.get("last-event-id", "")
        after = int(last) if last.isdecimal() and len(last) <= MAX_EVENT_ID_DIGITS else 0
        return StreamingResponse(events.stream(after), media_type="text/event-stream")

    return [
        Route("/leases/{lease}/events", stream_events, methods=["GET"]),
        *(
            Route("/leases/{lease}/desktop" + path, _handle_errors(handler, find, leases), methods=[method])
            for method, path, handler in _ROUTES
        ),
    ]


def _handle_errors(
    handler: Handler, find: LeaseFinder, leases: ActiveLeases
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        try:
            lease = find(request)
            epoch = request.headers.get(frame_codec.EPOCH_HEADER)
            if epoch is not None and epoch != str(lease.pool_lease.epoch):
                return _error("fenced", f"stale epoch {epoch[:20]}; this lease has epoch {lease.pool_lease.epoch}")
            if request.method == "POST":
                await request.body()  # read it all first: a started action completes even if the client disconnects
            with leases.using(lease):
                act = _error_replies(handler, lease, request)
                if request.method != "POST" or handler is perform:  # the desktop deduplicates actions by id
                    return await act()
                return await lease.replies.run_once(request.headers.get(frame_codec.REQUEST_HEADER), act)
        except HttpError as error:
            return _error("over", error.message) if error.status == 410 else error.response()
        except ClientDisconnect:
            return Response(status_code=499)

    return handle


def _error_replies(handler: Handler, lease: ActiveLease, request: Request) -> Callable[[], Awaitable[Response]]:
    async def act() -> Response:
        try:
            return await handler(lease, request)
        except HttpError as error:
            return error.response()
        except Exception as error:
            code = frame_codec.error_code(error)
            if code is None:
                log.exception("server.failed", endpoint=handler.__name__)
                return _error("infrastructure", "internal server error; see the server log")
            return _error(code, str(error))

    return act


def _error(code: str, message: str) -> Response:
    return JSONResponse({"error": code, "message": message}, status_code=frame_codec.ERRORS[code][0])


async def reset(lease: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"template": dict})
    template = desktop_spec_from_json(body["template"], lease.template)
    frame = await lease.desktop.reset(template)
    lease.on_reset(template)
    lease.events.publish("reset", sequence=frame.sequence)
    return await _frame(lease, request, frame)


async def perform(lease: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"ops": list, "action_id": str})
    if len(body["action_id"]) > MAX_ACTION_ID_CHARS:
        raise ConfigError(f"{request.url.path}: action_id must have at most {MAX_ACTION_ID_CHARS} characters")
    ops = [op_from_json(op, *lease.size) for op in body["ops"]]
    frame = await lease.desktop.perform(ops, action_id=body["action_id"])
    event = {"sequence": frame.sequence, "settle_ms": round(frame.settle_ms, 3), "settle_reason": frame.settle_reason}
    lease.events.publish("performed", action_id=body["action_id"], **event)
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
    body = await _body(request, {"argv": list, "timeout_s": (int, float)}, {"env": dict, "cwd": str})
    done = await lease.desktop.run(
        _argv(body["argv"]),
        timeout_s=min(body["timeout_s"], MAX_TIMEOUT_S),
        env=_environment(body.get("env")),
        cwd=body.get("cwd"),
    )
    outputs = {
        name: base64.b64encode(data).decode() for name, data in (("stdout", done.stdout), ("stderr", done.stderr))
    }
    return JSONResponse({"returncode": done.returncode, **outputs})


async def launch(lease: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"argv": list}, {"env": dict, "cwd": str})
    return JSONResponse(
        {"pid": await lease.desktop.launch(_argv(body["argv"]), env=_environment(body.get("env")), cwd=body.get("cwd"))}
    )


async def pull(lease: ActiveLease, request: Request) -> Response:
    return Response(
        await lease.desktop.pull(request.query_params.get("path", "")), media_type="application/octet-stream"
    )


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
    body = await _body(request, {"match": str, "timeout_s": (int, float), "count": int})
    found = await lease.desktop.wait_window(
        body["match"], timeout_s=min(body["timeout_s"], MAX_TIMEOUT_S), count=body["count"]
    )
    return JSONResponse({"windows": [asdict(window) for window in found]})


async def place_window(lease: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"window": dict, "x": int, "y": int}, {"width": int, "height": int})
    placed = await lease.desktop.place_window(
        _window(body["window"]), body["x"], body["y"], body.get("width"), body.get("height")
    )
    return JSONResponse({"window": asdict(placed)})


async def activate_window(lease: ActiveLease, request: Request) -> Response:
    await lease.desktop.activate_window(_window((await _body(request, {"window": dict}))["window"]))
    return JSONResponse({})


async def close_window(lease: ActiveLease, request: Request) -> Response:
    await lease.desktop.close_window(_window((await _body(request, {"window": dict}))["window"]))
    return JSONResponse({})


async def clipboard(lease: ActiveLease, request: Request) -> Response:
    return JSONResponse({"text": await lease.desktop.clipboard(request.query_params.get("selection", "CLIPBOARD"))})


async def _body(request: Request, required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON body if its keys have these types. Raises `ConfigError`."""
    types = required | (optional or {})
    try:
        body = parse_json_body(await request.body())
    except ValueError as error:
        raise ConfigError(f"{request.url.path}: invalid JSON body: {error}") from None
    if not isinstance(body, dict) or not set(required) <= set(body) <= set(types):
        raise ConfigError(f"{request.url.path}: allowed keys: {', '.join(types)}; required: {', '.join(required)}")
    body = {name: value for name, value in body.items() if value is not None or name in required}
    for name, value in body.items():
        if not isinstance(value, types[name]) or isinstance(value, bool):
            raise ConfigError(f"{request.url.path}: {name} has the wrong type")
    return body


def _argv(values: list[Any]) -> list[str]:
    if not all(isinstance(value, str) for value in values):
        raise ConfigError("argv must be a list of strings")
    return values


def _environment(values: dict[str, Any] | None) -> dict[str, str] | None:
    if values is not None and not all(isinstance(value, str) for value in values.values()):
        raise ConfigError("env must be an object with string values")
    return values


def _window(value: dict[str, Any]) -> Window:
    types = {item.name: str if item.name in ("title", "wm_class") else int for item in fields(Window)}
    if set(value) != set(types) or any(type(item) is not types[name] for name, item in value.items()):
        raise ConfigError("window must be an object that the server returned")
    return Window(**value)


def desktop_spec_from_json(value: Any, default: DesktopSpec) -> DesktopSpec:
    """Return `default` with the fields that a client requests. Raises `ConfigError`."""
    types = {name: type(item) for name, item in asdict(default).items()}
    if not isinstance(value, dict) or set(value) - set(types):
        raise ConfigError(f"template must be an object with the optional keys {', '.join(types)}")
    changes: dict[str, Any] = {}
    for name, item in value.items():
        is_tuple = types[name] is tuple
        changes[name] = tuple(item) if is_tuple and isinstance(item, list) else item
        if type(changes[name]) is not types[name] or (
            is_tuple and not all(isinstance(part, str) for part in changes[name])
        ):
            raise ConfigError(f"template.{name}: wrong type")
    return replace(default, **changes)


_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/reset", reset),
    ("POST", "/perform", perform),
    ("GET", "/frame", observe),
    ("POST", "/run", run),
    ("POST", "/launch", launch),
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
