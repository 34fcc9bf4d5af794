"""HTTP client for an engine's server. Used by `http_engine.engine` and the server protocols.

Every call has a timeout, and every error names the endpoint.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from deskhand.desktop.remote.http_connection import connection_failure, open_http
from deskhand.errors import ConfigError, InfrastructureError

T = TypeVar("T")
_CONNECT_S = 10.0
_SHOWN = 300
"""Maximum characters of a server's message in an error."""


class EndpointUnreachable(InfrastructureError):
    """The server did not answer or closed the connection; the request may be repeated."""


class RequestRejected(InfrastructureError):
    """The server answered with an error: the HTTP `status` and the start of its `message`."""

    def __init__(self, where: str, status: int, message: str) -> None:
        super().__init__(f"{where} answered {status}: {message}")
        self.status = status
        self.message = message


def check_url(url: str, key: str) -> str:
    """Return the base URL without a trailing slash. Raises `ConfigError` with `key` for anything but http(s)://host
    without credentials and query."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # invalid brackets or port
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"{key}: expected a URL such as http://host:port, got {url.split('@')[-1]!r}")
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            f"{key}: the URL of {parts.hostname} must not contain credentials or a query; set the API key"
        )
    return url.rstrip("/")


class HttpEndpoint:
    """JSON over HTTP to one server, at `url` or over the Unix socket `socket` (then the host in `url` is ignored).
    `api_key` is sent in a header and never appears in errors."""

    def __init__(self, url: str, *, api_key: str | None = None, socket: str | None = None) -> None:
        self.url = url
        self.name = f"unix:{socket}" if socket else url
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
        transport = httpx2.AsyncHTTPTransport(uds=socket, limits=limits, trust_env=False) if socket else None
        self._client = open_http(url, transport, headers=headers, limits=limits)

    async def get(self, path: str, *, timeout_s: float, query: dict[str, str] | None = None) -> Any:
        """Return the JSON of the response; None if it is empty. Raises `EndpointUnreachable`, or `RequestRejected` for
        a status of 400 and above."""
        return await self._request("GET", path, None, query or {}, timeout_s, True)

    async def post(
        self, path: str, body: Any = None, *, timeout_s: float, query: dict[str, str] | None = None, read: bool = True
    ) -> Any:
        """Like `get`, with a JSON body. With `read` False the response need not be JSON and None is returned."""
        return await self._request("POST", path, body, query or {}, timeout_s, read)

    async def close(self) -> None:
        await self._client.aclose()

    async def _request(
        self, method: str, path: str, body: Any, query: dict[str, str], timeout_s: float, read: bool
    ) -> Any:
        where = f"{self.name}{path}"
        if self._client.is_closed:
            raise EndpointUnreachable(f"{where}: the server has been stopped")
        timeout = httpx2.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        try:
            reply = await self._client.request(method, path, json=body, params=query or None, timeout=timeout)
        except httpx2.TimeoutException as error:
            raise EndpointUnreachable(
                f"{where} did not answer within {timeout_s:g} s ({type(error).__name__})"
            ) from None
        except httpx2.HTTPError as error:
            raise EndpointUnreachable(f"{where} cannot be reached: {connection_failure(error, self.url)}") from None
        if reply.status_code >= 400:
            raise RequestRejected(where, reply.status_code, _error_line(reply.text))
        if not reply.content or not read:
            return None
        try:
            return reply.json()
        except ValueError:
            raise RequestRejected(where, reply.status_code, f"not JSON: {_error_line(reply.text)}") from None


def _error_line(text: str) -> str:
    """Return a response as one short line; the message if it is a JSON error."""
    try:
        found = json.loads(text)
        inner = found.get("error", found)
        text = str(inner.get("message") or inner.get("detail") or inner) if isinstance(inner, dict) else str(inner)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:_SHOWN] or "(empty)"


async def cancel_on(lost: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or raise `EndpointUnreachable` as soon as the server is lost."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(lost.wait())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise EndpointUnreachable("the server was lost during a request")
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
