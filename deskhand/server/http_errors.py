"""Exceptions that become HTTP error replies. Their messages must not contain keys."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import HTMLResponse, JSONResponse, Response


class HttpError(Exception):
    """Reply with `status` and the body `{"error": message}`."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers

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
