"""What every route of the recorder shares. Invariant: whatever a client sends, it gets an answer that says what is wrong; the
recorder's own failures are in its log and tell the client nothing.

Keys come as `Authorization: Bearer KEY` or `x-api-key: KEY`. A wrong or missing key is 401, one of another session 403.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.sessions import Session, SessionAccess, SessionRegistry

log = structlog.get_logger()
Handler = Callable[[Request], Awaitable[Response]]
ErrorBody = Callable[[str, str, str | None, str], dict[str, Any]]
"""(message, type, parameter, code) to the body of an API's errors."""
_DEEPEST = 100


def openai_error(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    """OpenAI's body of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic_error(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    """Anthropic's body of an error; what it has no place for stands in the message."""
    named = f"{param}: {message}" if param else message
    kind = kind if kind in ("authentication_error", "permission_error", "invalid_request_error") else "api_error"
    return {"type": "error", "error": {"type": kind, "message": named, "code": code}}


def error_handling_route(handler: Handler, body: ErrorBody = openai_error) -> Handler:
    """Turn what a handler raises into an API's error body.

    Errors carry `x-should-retry: false`: asking again would sample a second time what was sampled once.
    """

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
        except Exception:  # the client must get an answer, the log the cause
            log.exception("recorder.failed", path=request.url.path)
            return error(500, "the recorder failed; its log says why", "server_error", None, "internal")

    return answer


class RequestAuth:
    """Who may do what: the admin everything but sample, a session's key what concerns its own session."""

    def __init__(self, sessions: SessionRegistry, admin_key: str) -> None:
        if len(admin_key) < 16:
            raise ConfigError(
                "the recorder's admin key must have at least 16 characters; make one with secrets.token_urlsafe(32)"
            )
        self._sessions, self._admin_key = sessions, admin_key.encode()

    def access(self, request: Request) -> SessionAccess:
        """What the request's session key opens. Raises `RequestRefused` 401."""
        access = self._sessions.find(key_of(request))
        if access is None:
            raise InvalidRequestError("the API key is of no open session", code="invalid_api_key", status=401)
        return access

    def is_admin(self, request: Request) -> bool:
        """Compared in constant time."""
        return hmac.compare_digest(key_of(request).encode("utf-8", "surrogatepass"), self._admin_key)

    def require_admin(self, request: Request) -> None:
        """Raise `RequestRefused`: 403 for a session's key, else 401."""
        if self.is_admin(request):
            return
        if self._sessions.find(key_of(request)) is not None:
            raise InvalidRequestError("this needs the admin key", code="permission_denied", status=403)
        raise InvalidRequestError("this needs the admin key", code="invalid_api_key", status=401)

    def session(self, request: Request) -> Session:
        """The session that the path names, for the admin and for its own keys. Raises `RequestRefused`.

        A foreign key learns nothing, not even whether the session exists.
        """
        session_id = request.path_params["session_id"]
        if self.is_admin(request):
            return self._sessions.get(session_id)
        session = self.access(request).session
        if session.id != session_id:
            raise InvalidRequestError("the API key is of another session", code="permission_denied", status=403)
        return session


def key_of(request: Request) -> str:
    """The key that came with a request; empty when none did."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "").strip()


async def read_body(request: Request, limit: int) -> bytes:
    """The body. Raises `RequestRefused` when it is longer than `limit` bytes."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise InvalidRequestError(f"the body has more than {limit} bytes", code="body_too_large", status=413)
        chunks.append(chunk)
    return b"".join(chunks)


def parse(raw: bytes) -> Any:
    """JSON as it is defined: no NaN, no infinities, not nested deeper than any request needs. Raises `RequestRefused`."""
    try:
        found = json.loads(raw, parse_constant=_refuse_constant)
        _refuse_depth(found, _DEEPEST)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON: {str(error)[:200]}") from None
    return found


async def read_small_json(request: Request, *names: str) -> dict[str, Any]:
    """A body that is an object with some of these fields, or empty. Raises `RequestRefused`."""
    raw = await read_body(request, 1 << 16)
    body = parse(raw) if raw else {}
    if not isinstance(body, dict) or set(body) - set(names):
        raise InvalidRequestError(f"the body is an object with the fields {', '.join(names) or '(none)'} alone")
    return body


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_depth(value: Any, left: int) -> None:
    if not isinstance(value, (dict, list)):
        return
    if left == 0:
        raise ValueError(f"nested deeper than {_DEEPEST} levels")
    for inner in value.values() if isinstance(value, dict) else value:
        _refuse_depth(inner, left - 1)
