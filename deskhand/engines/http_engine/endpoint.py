"""HTTP to an engine's server. Invariant: every call ends, with a reply or with an error that names the endpoint; a proxy set in
the environment never stands between us and this machine.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any
from urllib.parse import urlsplit

import httpx2

from deskhand.errors import ConfigError, InfrastructureError

_CONNECT_S = 10.0
_SHOWN = 300
"""Characters of a server's own words in an error."""


class EndpointUnreachable(InfrastructureError):
    """The server did not answer, or broke off: it may be down, and what was asked may be asked again."""


class RequestRejected(InfrastructureError):
    """The server answered with an error. `status` is the HTTP status, `said` the beginning of what it said."""

    def __init__(self, where: str, status: int, said: str) -> None:
        super().__init__(f"{where} answered {status}: {said}")
        self.status = status
        self.said = said


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    except ValueError:
        return False


def check_url(url: str, key: str) -> str:
    """The base URL without a trailing slash. Raises `ConfigError` naming `key` for anything but http(s)://host without secrets."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # brackets or a port that are none
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"{key} {url.split('@')[-1]!r} is not the address of a server; write http://host:port")
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            f"{key}: the address of {parts.hostname} must hold no password and no query; give the key by itself"
        )
    return url.rstrip("/")


class HttpEndpoint:
    """JSON over HTTP to one server: at `url`, or over the Unix socket `socket` (then `url` is a name without meaning).

    The environment's proxy settings are obeyed for other machines only. `api_key` goes into a header and never into an error.
    """

    def __init__(self, url: str, *, api_key: str | None = None, socket: str | None = None) -> None:
        self.url = url
        self.name = f"unix:{socket}" if socket else url
        host = urlsplit(url).hostname or ""
        direct = socket is not None or is_loopback(host)
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx2.AsyncClient(
            base_url=url,
            headers=headers,
            trust_env=not direct,
            transport=httpx2.AsyncHTTPTransport(uds=socket, limits=limits, trust_env=False) if direct else None,
            limits=limits,
        )

    async def get(self, path: str, *, timeout_s: float, query: dict[str, str] | None = None) -> Any:
        """The JSON of a reply; None when its body is empty."""
        return await self._ask("GET", path, None, query or {}, timeout_s)

    async def post(self, path: str, body: Any = None, *, timeout_s: float, query: dict[str, str] | None = None) -> Any:
        """As `get`. Raises `Unreachable`, or `Refused` for a status of 400 and above."""
        return await self._ask("POST", path, body, query or {}, timeout_s)

    async def tell(self, path: str, body: Any, *, timeout_s: float) -> None:
        """As `post`, where what the reply says is of no use."""
        await self._ask("POST", path, body, {}, timeout_s, read=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(
        self, method: str, path: str, body: Any, query: dict[str, str], timeout_s: float, *, read: bool = True
    ) -> Any:
        where = f"{self.name}{path}"
        if self._client.is_closed:
            raise EndpointUnreachable(f"{where}: its server has been ended")
        timeout = httpx2.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        try:
            reply = await self._client.request(method, path, json=body, params=query or None, timeout=timeout)
        except httpx2.TimeoutException as error:
            raise EndpointUnreachable(
                f"{where} did not answer within {timeout_s:g} s ({type(error).__name__})"
            ) from None
        except httpx2.HTTPError as error:
            raise EndpointUnreachable(f"{where} cannot be reached: {type(error).__name__} {error}".rstrip()) from None
        if reply.status_code >= 400:
            raise RequestRejected(where, reply.status_code, _said(reply.text))
        if not reply.content or not read:
            return None
        try:
            return reply.json()
        except ValueError:
            raise RequestRejected(where, reply.status_code, f"no JSON but {_said(reply.text)}") from None


def _said(text: str) -> str:
    """One short line of a server's answer; of the usual JSON of an error its message."""
    try:
        found = json.loads(text)
        inner = found.get("error", found)
        text = str(inner.get("message") or inner.get("detail") or inner) if isinstance(inner, dict) else str(inner)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:_SHOWN] or "nothing"
