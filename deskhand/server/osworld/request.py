"""Parsing of requests to OSWorld's server: the same bodies are accepted, the same errors returned."""

from __future__ import annotations

import json
import shlex
from typing import Any

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from deskhand.server.guest import Guest
from deskhand.server.http_errors import HtmlErrorPage

_NOT_JSON = "Did not attempt to load JSON data because the request Content-Type was not &#39;application/json&#39;."
_BAD_REQUEST = "The browser (or proxy) sent a request that this server could not understand."
_CRASH = (
    "The server encountered an internal error and was unable to complete your request. "
    "Either the server is overloaded or there is an error in the application."
)


def crash() -> HtmlErrorPage:
    """Return the reply of OSWorld's server to an unhandled exception."""
    return HtmlErrorPage(500, _CRASH)


async def json_of(request: Request) -> dict[str, Any]:
    """Return the JSON object of the body. Raises `HtmlErrorPage` (415 content type, 400 invalid, 500 no object)."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HtmlErrorPage(415, _NOT_JSON)
    try:
        body = json.loads(await request.body(), parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise HtmlErrorPage(400, _BAD_REQUEST) from None
    if not isinstance(body, dict):
        raise crash()
    return body


def _reject_constant(name: str) -> Any:
    """NaN and Infinity, which Python accepts, would pass every range check."""
    raise ValueError(f"{name} is not a JSON number")


async def form_of(request: Request) -> FormData:
    """Return the form, empty for other content types. Raises `HtmlErrorPage` (400) if it is malformed."""
    try:
        return await request.form(max_files=1, max_fields=16)
    except (HTTPException, MultiPartException, UnicodeDecodeError):
        raise HtmlErrorPage(400, _BAD_REQUEST) from None


async def command_of(body: dict[str, Any], guest: Guest) -> tuple[list[str], str | list[str]]:
    """Return the argv of `command` and `shell`, and the command as the server reports it. Raises `HtmlErrorPage`
    (500).

    Without `shell`, a string is split like in a shell; with it, the first word is the script and the rest are its
    arguments.
    """
    shell = bool(body.get("shell", False))
    command = body.get("command", "" if shell else [])
    if isinstance(command, str):
        if shell:
            return ["/bin/sh", "-c", command], command
        try:
            command = shlex.split(command)
        except ValueError:
            raise crash() from None
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise crash()
    words = [await guest.expand("~") + word[1:] if word.startswith("~/") else word for word in command]
    return (["/bin/sh", "-c", *words] if shell else words), words
