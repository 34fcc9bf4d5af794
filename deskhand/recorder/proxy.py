"""The recorder over HTTP. Invariant: one session per episode, known by its bearer key alone; keys never stand in addresses or logs.

| route                                  | key     | body                                             |
|----------------------------------------|---------|--------------------------------------------------|
| `POST /v1/chat/completions` (and without `/v1`) | session | OpenAI chat completions (`apis.chat`)    |
| `GET /v1/models` (and without `/v1`)   | either  |                                                  |
| `POST /sessions`                       | admin   | `{"session_id"?: str}` -> `{"session_id", "api_key"}` |
| `POST /sessions/{id}/end`              | admin   | -> `{"session_id", "graph"}` (`CallGraph.to_dict`) |
| `GET /health`                          | none    |                                                  |

Errors have OpenAI's body. They carry `x-should-retry: false` where asking again cannot help, so that no client samples twice.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.recorder.apis.chat import read_request, reply_body, stream_chunks
from deskhand.recorder.images import ImageCache
from deskhand.recorder.refusal import RequestRefused
from deskhand.recorder.session import Recorder, Session

log = structlog.get_logger()
Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    recorder: Recorder, admin_key: str, *, model: str = "deskhand", default_max_tokens: int = 512, max_body_bytes: int = 256 << 20
) -> Starlette:
    """The application. `recorder.images` must be an `ImageCache`. Raises `ConfigError` for an admin key under 16 characters."""
    images = recorder.images
    if not isinstance(images, ImageCache):
        raise ConfigError("create_app needs a recorder made with an ImageCache, so that it can take images")
    if len(admin_key) < 16:
        raise ConfigError("the recorder's admin key must have at least 16 characters; make one with secrets.token_urlsafe(32)")

    async def completions(request: Request) -> Response:
        session = _session(request)
        raw = await _read_body(request, max_body_bytes)
        body = await recorder.in_thread(lambda: read_request(_parse(raw), recorder.renderer, images, default_max_tokens))
        reply = await recorder.complete(session, body.request)
        if body.stream:
            return StreamingResponse(stream_chunks(reply, body, recorder.renderer, model), media_type="text/event-stream")
        return JSONResponse(reply_body(reply, body, recorder.renderer, model))

    async def models(request: Request) -> Response:
        if not _is_admin(request):
            _session(request)
        return JSONResponse({"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "deskhand"}]})

    async def start(request: Request) -> Response:
        _demand_admin(request)
        raw = await _read_body(request, 1 << 16)
        body = _parse(raw) if raw else {}
        session_id = body.get("session_id", f"session-{secrets.token_hex(8)}") if isinstance(body, dict) else None
        if not isinstance(session_id, str) or not session_id or set(body) - {"session_id"}:
            raise RequestRefused('the body takes {"session_id": text} alone', param="session_id")
        return JSONResponse({"session_id": session_id, "api_key": recorder.start(session_id)})

    async def end(request: Request) -> Response:
        _demand_admin(request)
        session_id = request.path_params["session_id"]
        graph = recorder.end(session_id)
        data = await recorder.in_thread(lambda: json.dumps({"session_id": session_id, "graph": graph.to_dict()}))
        return Response(data, media_type="application/json")

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": recorder.engine.version, "violations": dict(recorder.violations)})

    def _session(request: Request) -> Session:
        session = recorder.session(_bearer(request))
        if session is None:
            raise RequestRefused("the API key is of no open session", code="invalid_api_key", status=401)
        return session

    def _is_admin(request: Request) -> bool:
        return hmac.compare_digest(_bearer(request).encode(), admin_key.encode())

    def _demand_admin(request: Request) -> None:
        if not _is_admin(request):
            raise RequestRefused("this needs the admin key", code="invalid_api_key", status=401)

    routes = [Route("/health", health), Route("/sessions", _answer(start), methods=["POST"])]
    routes.append(Route("/sessions/{session_id}/end", _answer(end), methods=["POST"]))
    for prefix in ("", "/v1"):
        routes.append(Route(f"{prefix}/chat/completions", _answer(completions), methods=["POST"]))
        routes.append(Route(f"{prefix}/models", _answer(models)))
    return Starlette(routes=routes)


def in_process_client(app: Starlette, *, timeout_s: float = 600.0) -> Any:
    """An `httpx2.AsyncClient` that calls `app` without a socket: `AsyncOpenAI(base_url="http://recorder/v1", http_client=...)`."""
    import httpx2

    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://recorder", timeout=timeout_s)


def _answer(handler: Handler) -> Handler:
    """Turn what a handler raises into OpenAI's error body."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestRefused as error:
            kind = "authentication_error" if error.status == 401 else "invalid_request_error"
            return _error(error.status, error.message, kind, error.param, error.code)
        except RecordError as error:
            return _error(500, str(error), "record_error", None, error.cause)
        except InfrastructureError as error:
            return _error(503, str(error), "infrastructure_error", None, "infrastructure")
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:  # the client must get an answer, the log the cause
            log.exception("recorder.failed", path=request.url.path)
            return _error(500, "the recorder failed; its log says why", "server_error", None, "internal")

    return answer


def _error(status: int, message: str, kind: str, param: str | None, code: str) -> JSONResponse:
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status_code=status, headers={"x-should-retry": "false"})


def _bearer(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


async def _read_body(request: Request, limit: int) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise RequestRefused(f"the body has more than {limit} bytes", code="body_too_large", status=413)
        chunks.append(chunk)
    return b"".join(chunks)


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise RequestRefused(f"the body is not JSON: {error}") from None
