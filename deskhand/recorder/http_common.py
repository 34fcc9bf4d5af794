"""Authentication, error responses, body parsing and shared session routes of the recorder's HTTP servers.

Used by `recorder.server` and `recorder.recording_proxy`. Keys are sent as `Authorization: Bearer KEY` or
`x-api-key: KEY`. An invalid or missing key is 401, a key of another session 403. Internal errors are logged and hidden
from the client.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.recorder.apis.validation import read_field
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.sessions import Session, SessionAccess, SessionRegistry

log = structlog.get_logger()
Handler = Callable[[Request], Awaitable[Response]]
ErrorBody = Callable[[str, str, str | None, str], dict[str, Any]]
"""Builds an API's error body from (message, type, parameter, code)."""
_MAX_DEPTH = 100


def openai_error(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    """Return OpenAI's error body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic_error(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    """Return Anthropic's error body; the parameter is prefixed to the message."""
    text = f"{param}: {message}" if param else message
    kind = kind if kind in ("authentication_error", "permission_error", "invalid_request_error") else "api_error"
    return {"type": "error", "error": {"type": kind, "message": text, "code": code}}


def error_handling_route(handler: Handler, body: ErrorBody = openai_error) -> Handler:
    """Turn a handler's exceptions into error responses. They have `x-should-retry: false`, because a retry would sample
    a second time."""

    def error(status: int, message: str, kind: str, param: str | None, code: str) -> JSONResponse:
        return JSONResponse(body(message, kind, param, code), status_code=status, headers={"x-should-retry": "false"})

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except InvalidRequestError as refusal:
            kind = {401: "authentication_error", 403: "permission_error"}.get(refusal.status, "invalid_request_error")
            return error(refusal.status, refusal.message, kind, refusal.param, refusal.code)
        except RecordError as failure:
            return error(500, str(failure), "record_error", None, failure.cause)
        except InfrastructureError as failure:
            return error(503, str(failure), "infrastructure_error", None, "infrastructure")
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            log.exception("recorder.failed", path=request.url.path)
            return error(500, "internal error; see the recorder's log", "server_error", None, "internal")

    return answer


class RequestAuth:
    """Permissions: the admin key for everything but sampling, a session's key for its own session."""

    def __init__(self, sessions: SessionRegistry, admin_key: str) -> None:
        if len(admin_key) < 16:
            raise ConfigError("admin_key: must have at least 16 characters; use secrets.token_urlsafe(32)")
        self._sessions, self._admin_key = sessions, admin_key.encode()

    def access(self, request: Request) -> SessionAccess:
        """Return the session and agent of the request's key. Raises `InvalidRequestError` 401."""
        access = self._sessions.find(key_of(request))
        if access is None:
            raise InvalidRequestError(
                "the API key does not belong to an open session", code="invalid_api_key", status=401
            )
        return access

    def is_admin(self, request: Request) -> bool:
        """Return whether the request has the admin key; compares in constant time."""
        return hmac.compare_digest(key_of(request).encode("utf-8", "surrogatepass"), self._admin_key)

    def require_admin(self, request: Request) -> None:
        """Raise `InvalidRequestError` without the admin key: 403 for a session's key, else 401."""
        if self.is_admin(request):
            return
        if self._sessions.find(key_of(request)) is not None:
            raise InvalidRequestError("this route requires the admin key", code="permission_denied", status=403)
        raise InvalidRequestError("this route requires the admin key", code="invalid_api_key", status=401)

    def session(self, request: Request) -> Session:
        """Return the session in the path, for the admin and for its own keys. Raises `InvalidRequestError`. Other keys
        do not learn whether the session exists."""
        session_id = request.path_params["session_id"]
        if self.is_admin(request):
            return self._sessions.get(session_id)
        session = self.access(request).session
        if session.id != session_id:
            raise InvalidRequestError("the API key belongs to another session", code="permission_denied", status=403)
        return session


def key_of(request: Request) -> str:
    """Return the key of a request; empty if there is none."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "").strip()


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body. Raises `InvalidRequestError` above `limit` bytes."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise InvalidRequestError(f"the body has more than {limit} bytes", code="body_too_large", status=413)
        chunks.append(chunk)
    return b"".join(chunks)


def parse(raw: bytes) -> Any:
    """Parse strict JSON: no NaN, no infinities, at most 100 levels. Raises `InvalidRequestError`."""
    try:
        found = json.loads(raw, parse_constant=_reject_constant)
        _check_depth(found, _MAX_DEPTH)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON: {str(error)[:200]}") from None
    return found


def parse_object(raw: bytes) -> dict[str, Any]:
    """Like `parse`, for an object."""
    found = parse(raw)
    if not isinstance(found, dict):
        raise InvalidRequestError("the body must be a JSON object")
    return found


async def read_small_json(request: Request, *names: str) -> dict[str, Any]:
    """Return a body that is empty or an object with some of these fields. Raises `InvalidRequestError`."""
    raw = await read_body(request, 1 << 16)
    body = parse(raw) if raw else {}
    if not isinstance(body, dict) or set(body) - set(names):
        raise InvalidRequestError(f"the body must be an object with only the fields {', '.join(names) or '(none)'}")
    return body


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _check_depth(value: Any, left: int) -> None:
    if not isinstance(value, (dict, list)):
        return
    if left == 0:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    for inner in value.values() if isinstance(value, dict) else value:
        _check_depth(inner, left - 1)


def session_routes(
    keys: RequestAuth, open_session: Callable[[str], str], reward: Callable[..., Awaitable[str | None]]
) -> list[Route]:
    """Return the routes that open and reward sessions; `reward` is `Recorder.reward` or `RecordingProxy.reward`."""

    async def start(request: Request) -> Response:
        keys.require_admin(request)
        body = await read_small_json(request, "session_id")
        session_id = read_field(body, "session_id", str, f"session-{secrets.token_hex(8)}")
        return JSONResponse({"session_id": session_id, "api_key": open_session(session_id)})

    async def set_reward(request: Request) -> Response:
        session = keys.session(request)
        body = await read_small_json(request, "reward", "call_id", "whole")
        value, call_id = read_field(body, "reward", float, None), read_field(body, "call_id", str, None)
        if value is None:
            raise InvalidRequestError("reward must be a finite number", param="reward")
        whole = read_field(body, "whole", bool, False)
        if whole and call_id is not None:
            raise InvalidRequestError("call_id and whole are mutually exclusive", param="whole")
        rewarded = await reward(session, value, call_id, whole=whole)
        return JSONResponse({"session_id": session.id, "call_id": rewarded, "reward": value})

    return [
        Route("/sessions", error_handling_route(start), methods=["POST"]),
        Route("/sessions/{session_id:path}/rewards", error_handling_route(set_reward), methods=["POST"]),
    ]
