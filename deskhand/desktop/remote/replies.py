"""Reading of HTTP replies: which are the server's own, and whether they have the shape of its protocol.

Used by every client of a remote desktop. Whatever a proxy, a login page or a tunnel answers is a `ForeignReply`, with
any status: `RetryingClient` sends the request again where that is safe, and else reports an unknown outcome.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from typing import Annotated, Any, TypeVar

import httpx2
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from deskhand.errors import InfrastructureError

Result = TypeVar("Result")
RETRIED_STATUS = (408, 502, 503, 504)
"""Statuses of a server that is unreachable, overloaded or was sent half a request."""
NOT_PERFORMED_STATUS = (408, 503)
"""Those that say, in a reply of the server itself, that the request was not performed."""
_PAGE_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml")
_FLASK_PAGES = (b"<!doctype html>\n<html lang=en>\n<title>", b'<!doctype html public "-//w3c//dtd html 3.2 final//en">')
"""How an error page of Flask begins, in lower case, which OSWorld's server sends for errors that it does not handle."""
_DEBUGGER_PAGE = re.compile(rb"<title>[^<]*// werkzeug debugger</title>", re.IGNORECASE)
"""In the page for the same errors where Flask runs with `debug=True`, as OSWorld's server does."""


class ForeignReply(Exception):
    """A reply that the server did not send, or JSON of another shape. Nothing is known about the request."""


class JsonReply(BaseModel):
    """Base class of replies: no conversions, other keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


def _from_base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("must be base64")
    return base64.b64decode(text, validate=True)


FromBase64 = Annotated[bytes, BeforeValidator(_from_base64)]
"""Bytes, which are base64 in JSON."""


class SandboxReply(JsonReply):
    """A sandbox, or a lease of a desktop server."""

    id: str = Field(min_length=1, validation_alias=AliasChoices("lease", "id"))
    ttl_s: float = Field(gt=0, validation_alias=AliasChoices("idle_s", "ttl_s"))
    state: str = Field("ready", pattern="^(creating|ready|failed|deleted)$")
    key: str | None = None
    message: str | None = None
    epoch: int = Field(0, ge=0)
    width: int = Field(0, ge=0)
    height: int = Field(0, ge=0)
    backend: str = "local"


class CommandReply(JsonReply):
    """The end of a command."""

    returncode: int
    stdout: FromBase64
    stderr: FromBase64


@functools.cache
def _adapter(kind: type[Result]) -> TypeAdapter[Result]:
    return TypeAdapter(kind)


def parse_json(kind: type[Result], data: bytes | str) -> Result:
    """Return JSON as `kind`, without conversions. Raises `ValueError` with the first thing that is wrong."""
    try:
        return _adapter(kind).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{key}: {first['msg']}" if key else first["msg"]) from None


def json_reply(reply: httpx2.Response, kind: type[Result]) -> Result:
    """Return the body of a reply as `kind`. Raises `ForeignReply`."""
    try:
        return parse_json(kind, reply.content)
    except ValueError as error:
        raise ForeignReply(f"{describe(reply)}: {error}") from None


def json_object(reply: httpx2.Response) -> dict[str, Any]:
    """Return the JSON object of a reply with any status. Raises `ForeignReply`."""
    return json_reply(reply, dict[str, Any])


def is_json_object(reply: httpx2.Response) -> bool:
    try:
        return isinstance(json.loads(reply.content), dict)
    except (ValueError, RecursionError):
        return False


def error_object(reply: httpx2.Response) -> dict[str, Any]:
    """Return the body of an error reply of Deskhand's servers and of sandbox gateways. Raises `ForeignReply`."""
    body = json_object(reply)
    if not isinstance(body.get("error"), str):
        raise ForeignReply(f"{describe(reply)}: error: must be text")
    return body


def server_reply(reply: httpx2.Response) -> httpx2.Response:
    """Return a reply that OSWorld's or WAA's server may have sent, with a status for the caller to judge.

    Raises `ForeignReply` for statuses that only proxies send, and for pages that are not Flask's.
    """
    status = reply.status_code
    if not (200 <= status < 300 or 400 <= status <= 500) or status in (402, 407, 421, 425) or _is_foreign_page(reply):
        raise ForeignReply(describe(reply))
    return reply


def _is_foreign_page(reply: httpx2.Response) -> bool:
    start = reply.content[:200].lstrip().lower()
    if not start.startswith(_PAGE_STARTS):
        return False
    if reply.status_code < 400:  # a file may be a page
        return "html" in reply.headers.get("content-type", "html") and "content-disposition" not in reply.headers
    is_debugger = reply.status_code == 500 and _DEBUGGER_PAGE.search(reply.content, 0, 1 << 16) is not None
    return not (is_debugger or start.startswith(_FLASK_PAGES))


def is_own_refusal(reply: httpx2.Response) -> bool:
    """Return whether a reply is the server's own word that it performed nothing.

    A 429 always is. Any other refusal must be exactly what Deskhand's servers and sandbox gateways send: an `error`
    and a `message`, both text. A proxy in front may have passed the request on and replies with JSON of its own.
    """
    if reply.status_code == 429:
        return True
    try:
        body = json.loads(reply.content)
    except (ValueError, RecursionError):
        return False
    has_shape = isinstance(body, dict) and "error" in body and body.keys() <= {"error", "message"}
    return has_shape and all(isinstance(text, str) for text in body.values())


def guest_json(kind: type[Result], text: str, about: str) -> Result:
    """Return JSON that a program in the guest printed, as `kind`. Raises `InfrastructureError`."""
    try:
        return parse_json(kind, text)
    except ValueError as error:
        raise InfrastructureError(
            f"{about}: the guest's Python printed something else than expected: {error}"
        ) from None


def describe(reply: httpx2.Response) -> str:
    """Return status and type of a reply that is not the server's."""
    kind = reply.headers.get("content-type", "no content type").partition(";")[0][:40]
    return f"{reply.status_code} {kind}, not a reply of the server"
