"""Deskhand's own dialect for a leased desktop. Invariant: a request that is sent twice is carried out once, and one that names an
epoch other than its lease's is carried out never.

| route (under `/leases/{lease}`)           | body                                        | reply                            |
|-------------------------------------------|---------------------------------------------|----------------------------------|
| `POST /desktop/reset`                     | `{"template"}`                              | a frame                          |
| `POST /desktop/perform`                   | `{"ops", "action_id"}`, plain ops in pixels | a frame                          |
| `GET /desktop/frame`                      |                                             | a frame                          |
| `POST /desktop/run`                       | `{"argv", "timeout_s", "env"?, "cwd"?}`     | `{"returncode", "stdout", "stderr"}` |
| `POST /desktop/launch`                    | `{"argv", "env"?, "cwd"?}`                  | `{"pid"}`                        |
| `GET`, `PUT /desktop/file?path=`          | the file's bytes                            | the file's bytes; `{}`           |
| `GET /desktop/folder?path=`               |                                             | `{"names"}`                      |
| `GET /desktop/accessibility`              |                                             | `{"tree"}`                       |
| `GET /desktop/windows`                    |                                             | `{"windows"}`                    |
| `POST /desktop/windows/wait`              | `{"match", "timeout_s", "count"}`           | `{"windows"}`                    |
| `POST /desktop/windows/place`             | `{"window", "x", "y", "width"?, "height"?}` | `{"window"}`                     |
| `POST /desktop/windows/activate`, `close` | `{"window"}`                                | `{}`                             |
| `GET /desktop/clipboard?selection=`       |                                             | `{"text"}`                       |
| `GET /events`                             |                                             | server-sent events (`events`)    |

Outputs of programs are base64; frames and errors are as `deskhand.desktop.frame_codec` has them, and the header `x-deskhand-base`, or
`?base=<hash>`, asks for what differs from the frame sent before. Requests carry the lease's epoch in `x-deskhand-epoch`, and those
that act an id in `x-deskhand-request`.
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
from deskhand.server.lease_events import STREAMS

log = structlog.get_logger()
Handler = Callable[[ActiveLease, Request], Awaitable[Response]]
LeaseFinder = Callable[[Request], ActiveLease]

LONGEST_S = 3600.0
LONGEST_ID = 256
"""Characters of an action's id, which the desktop and the events remember."""
LONGEST_NUMBER = 18
"""Digits of an event's number."""


def routes(find: LeaseFinder, book: ActiveLeases) -> list[Route]:
    """The routes of the table. `find` gives the lease of a request or raises `Refused`."""

    async def events(request: Request) -> Response:
        try:
            told = find(request).events
        except HttpError as refusal:
            return refusal.response()
        if told.streams >= STREAMS:
            return HttpError(429, f"{STREAMS} clients listen to this lease already", {"retry-after": "10"}).response()
        last = request.headers.get("last-event-id", "")
        after = int(last) if last.isdecimal() and len(last) <= LONGEST_NUMBER else 0
        return StreamingResponse(told.stream(after), media_type="text/event-stream")

    return [
        Route("/leases/{lease}/events", events, methods=["GET"]),
        *(
            Route("/leases/{lease}/desktop" + path, _answer(handler, find, book), methods=[method])
            for method, path, handler in _TABLE
        ),
    ]


def _answer(handler: Handler, find: LeaseFinder, book: ActiveLeases) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            held = find(request)
            epoch = request.headers.get(frame_codec.EPOCH_HEADER)
            if epoch is not None and epoch != str(held.lease.epoch):
                return _error("fenced", f"epoch {epoch[:20]} is over; this lease has epoch {held.lease.epoch}")
            if request.method == "POST":
                await request.body()  # what acts is begun with its whole body, and goes on when the client hangs up
            with book.using(held):
                act = _guarded(handler, held, request)
                if request.method != "POST" or handler is perform:  # the desktop itself knows an action by its id
                    return await act()
                return await held.replies.run_once(request.headers.get(frame_codec.REQUEST_HEADER), act)
        except HttpError as refusal:
            return _error("over", refusal.message) if refusal.status == 410 else refusal.response()
        except ClientDisconnect:
            return Response(status_code=499)

    return answer


def _guarded(handler: Handler, held: ActiveLease, request: Request) -> Callable[[], Awaitable[Response]]:
    async def act() -> Response:
        try:
            return await handler(held, request)
        except HttpError as refusal:
            return refusal.response()
        except Exception as error:
            word = frame_codec.error_code(error)
            if word is None:
                log.exception("bridge.failed", endpoint=handler.__name__)
                return _error("infrastructure", "the bridge failed; its log says why")
            return _error(word, str(error))

    return act


def _error(word: str, message: str) -> Response:
    return JSONResponse({"error": word, "message": message}, status_code=frame_codec.ERRORS[word][0])


async def reset(held: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"template": dict})
    template = desktop_spec_from_json(body["template"], held.template)
    frame = await held.desktop.reset(template)
    held.renewed(template)
    held.events.publish("reset", sequence=frame.sequence)
    return await _frame(held, request, frame)


async def perform(held: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"ops": list, "action_id": str})
    if len(body["action_id"]) > LONGEST_ID:
        raise ConfigError(f"{request.url.path}: action_id has more than {LONGEST_ID} characters")
    ops = [op_from_json(plain, *held.size) for plain in body["ops"]]
    frame = await held.desktop.perform(ops, action_id=body["action_id"])
    told = {"sequence": frame.sequence, "settled_ms": round(frame.settle_ms, 3), "settle_reason": frame.settle_reason}
    held.events.publish("performed", action_id=body["action_id"], **told)
    return await _frame(held, request, frame)


async def observe(held: ActiveLease, request: Request) -> Response:
    return await _frame(held, request, await held.desktop.observe())


async def _frame(held: ActiveLease, request: Request, found: Frame) -> Response:
    wanted = request.headers.get(frame_codec.BASE_HEADER) or request.query_params.get("base")
    base = held.sent if held.sent is not None and held.sent.content_hash == wanted else None
    held.sent = found
    if frame_codec.is_delta_of(found, base):  # no screens to compare
        header, body = frame_codec.encode_frame(found, base)
    else:
        header, body = await asyncio.to_thread(frame_codec.encode_frame, found, base)
    return Response(body, media_type="application/octet-stream", headers={frame_codec.FRAME_HEADER: header})


async def run(held: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"argv": list, "timeout_s": (int, float)}, {"env": dict, "cwd": str})
    done = await held.desktop.run(
        _words(body["argv"]),
        timeout_s=min(body["timeout_s"], LONGEST_S),
        env=_environment(body.get("env")),
        cwd=body.get("cwd"),
    )
    outputs = {
        name: base64.b64encode(data).decode() for name, data in (("stdout", done.stdout), ("stderr", done.stderr))
    }
    return JSONResponse({"returncode": done.returncode, **outputs})


async def launch(held: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"argv": list}, {"env": dict, "cwd": str})
    return JSONResponse(
        {"pid": await held.desktop.launch(_words(body["argv"]), env=_environment(body.get("env")), cwd=body.get("cwd"))}
    )


async def pull(held: ActiveLease, request: Request) -> Response:
    return Response(
        await held.desktop.pull(request.query_params.get("path", "")), media_type="application/octet-stream"
    )


async def push(held: ActiveLease, request: Request) -> Response:
    await held.desktop.push(request.query_params.get("path", ""), await request.body())
    return JSONResponse({})


async def folder(held: ActiveLease, request: Request) -> Response:
    return JSONResponse({"names": await held.desktop.listdir(request.query_params.get("path", ""))})


async def accessibility(held: ActiveLease, request: Request) -> Response:
    return JSONResponse({"tree": await held.desktop.accessibility_tree()})


async def windows(held: ActiveLease, request: Request) -> Response:
    return JSONResponse({"windows": [asdict(window) for window in await held.desktop.windows()]})


async def wait_window(held: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"match": str, "timeout_s": (int, float), "count": int})
    found = await held.desktop.wait_window(
        body["match"], timeout_s=min(body["timeout_s"], LONGEST_S), count=body["count"]
    )
    return JSONResponse({"windows": [asdict(window) for window in found]})


async def place_window(held: ActiveLease, request: Request) -> Response:
    body = await _body(request, {"window": dict, "x": int, "y": int}, {"width": int, "height": int})
    placed = await held.desktop.place_window(
        _window(body["window"]), body["x"], body["y"], body.get("width"), body.get("height")
    )
    return JSONResponse({"window": asdict(placed)})


async def activate_window(held: ActiveLease, request: Request) -> Response:
    await held.desktop.activate_window(_window((await _body(request, {"window": dict}))["window"]))
    return JSONResponse({})


async def close_window(held: ActiveLease, request: Request) -> Response:
    await held.desktop.close_window(_window((await _body(request, {"window": dict}))["window"]))
    return JSONResponse({})


async def clipboard(held: ActiveLease, request: Request) -> Response:
    return JSONResponse({"text": await held.desktop.clipboard(request.query_params.get("selection", "CLIPBOARD"))})


async def _body(request: Request, needed: dict[str, Any], allowed: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object of the body with keys of these types. Raises `ConfigError`."""
    kinds = needed | (allowed or {})
    try:
        body = parse_json_body(await request.body())
    except ValueError as error:
        raise ConfigError(f"{request.url.path}: the body is not JSON: {error}") from None
    if not isinstance(body, dict) or not set(needed) <= set(body) <= set(kinds):
        raise ConfigError(
            f"{request.url.path}: the body has the keys {', '.join(kinds)}, of which it needs {', '.join(needed)}"
        )
    body = {name: value for name, value in body.items() if value is not None or name in needed}
    for name, value in body.items():
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ConfigError(f"{request.url.path}: {name} has a wrong type")
    return body


def _words(words: list[Any]) -> list[str]:
    if not all(isinstance(word, str) for word in words):
        raise ConfigError("argv must be a list of texts")
    return words


def _environment(values: dict[str, Any] | None) -> dict[str, str] | None:
    if values is not None and not all(isinstance(value, str) for value in values.values()):
        raise ConfigError("env must be an object of texts")
    return values


def _window(told: dict[str, Any]) -> Window:
    kinds = {item.name: str if item.name in ("title", "wm_class") else int for item in fields(Window)}
    if set(told) != set(kinds) or any(type(value) is not kinds[name] for name, value in told.items()):
        raise ConfigError("window must be an object as the bridge gave it")
    return Window(**told)


def desktop_spec_from_json(told: Any, otherwise: DesktopSpec) -> DesktopSpec:
    """The template that a client asks for; what it leaves out is as in `otherwise`. Raises `ConfigError`."""
    defaults = asdict(otherwise)
    kinds = {name: type(value) for name, value in defaults.items()}
    known = ", ".join(f'"{name}"' for name in kinds)
    if not isinstance(told, dict) or set(told) - set(kinds):
        raise ConfigError(f"template must be an object with {known}, each of them optional")
    made: dict[str, Any] = {}
    for name, value in told.items():
        made[name] = tuple(value) if kinds[name] is tuple and isinstance(value, list) else value
        if type(made[name]) is not kinds[name] or (
            kinds[name] is tuple and not all(isinstance(item, str) for item in made[name])
        ):
            raise ConfigError(f"template: {name} has a wrong type")
    return replace(otherwise, **made)


_TABLE: tuple[tuple[str, str, Handler], ...] = (
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
