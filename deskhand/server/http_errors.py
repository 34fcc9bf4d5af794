"""Exceptions that become HTTP error replies. Their messages must not contain keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from deskhand.errors import ConfigError

log = structlog.get_logger()
Handler = Callable[[Request], Awaitable[Response]]


class HttpError(Exception):
    """Reply with `status` and the body `{"error": message}`."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers

    def response(self) -> Response:
        return JSONResponse({"error": self.message}, status_code=self.status, headers=self.headers)


class HtmlErrorPage(HttpError):
    """Reply with a short HTML page, as OSWorld's server does for errors that it does not handle."""

    def response(self) -> Response:
        name = HTTPStatus(self.status).phrase
        page = (
            f"<!doctype html>\n<html lang=en>\n<title>{self.status} {name}</title>\n<h1>{name}</h1>\n"
            f"<p>{self.message}</p>\n"
        )
        return HTMLResponse(page, status_code=self.status, headers=self.headers)


def unauthorized(secret: str) -> HttpError:
    """Return the reply to a request without a valid "key" or "token"."""
    message = f"missing or invalid {secret}; send Authorization: Bearer <{secret}>"
    return HttpError(401, message, {"www-authenticate": "Bearer"})


def reply_errors(handler: Handler, on_error: Callable[[Exception], Response | None] = lambda error: None) -> Handler:
    """Return `handler` with the error replies of `on_error`; if that is None, 400 for `ConfigError`, else 500."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except HttpError as error:
            return error.response()
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            if (reply := on_error(error)) is not None:
                return reply
            if isinstance(error, ConfigError):
                return JSONResponse({"error": str(error)}, status_code=400)
            log.exception("server.failed", path=request.url.path)
            return JSONResponse({"error": "internal server error; see the server log"}, status_code=500)

    return handle
