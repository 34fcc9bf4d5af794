"""HTTP client with retries, quota waiting and delivery guarantees, for every remote desktop.

Invariant: a request that may act twice is repeated only if it was certainly not performed; if the outcome is unknown,
`DeliveryUnknown` is raised. Reads, and requests with an id that the server deduplicates, are repeatable. A reply that
is not the server's own (`replies`) says nothing about the request, whatever its status. A quota refusal waits at the
client's gate, outside all timeouts and attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, overload
from urllib.parse import urlsplit

import httpcore2
import httpx2

from deskhand import pausable_timeout
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.remote.http_connection import connection_failure, open_http, tls_mistake
from deskhand.desktop.remote.quota import QuotaGate, QuotaManager
from deskhand.desktop.remote.quota_errors import QuotaExceeded, quota_signal_from_reply
from deskhand.desktop.remote.replies import (
    NOT_PERFORMED_STATUS,
    RETRIED_STATUS,
    ForeignReply,
    is_own_refusal,
    server_reply,
)
from deskhand.errors import ConfigError, DeliveryUnknown, InfrastructureError

Result = TypeVar("Result")
Parse = Callable[[httpx2.Response], Result]
"""Reads a reply. Raises `ForeignReply` if the server cannot have sent it, and the error that it reports."""
NOT_SENT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
NOT_REMEMBERED_STATUS = (401, 409, 410)
"""Refusals that a server sends before it looks up the id of a request."""
MAX_CACHED_URLS = 256
_reached: set[str] = set()
"""Servers that have replied to this process: what is wrong with TLS later may pass, and is no mistake in a setting."""
MAX_REPLY_BYTES = 96 << 20
"""Size limit of a reply, so that a guest cannot exhaust the client's memory."""
httpcore2.AsyncHTTP11Connection.READ_NUM_BYTES = 1 << 20  # pyright: ignore[reportAttributeAccessIssue]
# Larger reads than the default of 64 KiB: a frame takes fewer turns of the event loop.


def check_base_url(url: str, what: str) -> str:
    """Return `url` without a trailing slash. Raises `ConfigError` unless it is http(s) without credentials."""
    try:
        parts = urlsplit(url)
        has_extras = parts.username or parts.query or parts.fragment
        is_valid = parts.scheme in ("http", "https") and parts.hostname and not has_extras
        _ = parts.port
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError(f"{what}: expected http://host:port or https://host:port without credentials")
    return url.rstrip("/")


async def _read_reply(reply: httpx2.Response) -> httpx2.Response:
    """Read a reply to its end. Raises `ForeignReply` if it is too large, or compressed and may expand."""
    parts, size = [], 0
    length, encoding = reply.headers.get("content-length", ""), reply.headers.get("content-encoding", "identity")
    try:
        if encoding != "identity":
            raise ForeignReply(f"unrequested content-encoding {encoding[:20]}")
        if length.isdecimal() and int(length) <= MAX_REPLY_BYTES:
            await reply.aread()
            return reply
        async for part in reply.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > MAX_REPLY_BYTES:
                raise ForeignReply(f"the reply exceeds {MAX_REPLY_BYTES} bytes")
    finally:
        await reply.aclose()
    headers = {name: value for name, value in reply.headers.items() if name != "transfer-encoding"}
    return httpx2.Response(reply.status_code, headers=headers, content=b"".join(parts), request=reply.request)


def open_connections(base_url: str, transport: httpx2.AsyncBaseTransport | None = None) -> httpx2.AsyncClient:
    """Return connections to a server, for one client or several. Raises `ConfigError` like `open_http`."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=256)
    client = open_http(base_url, transport, limits=limits)
    for name in ("accept", "accept-encoding", "connection"):  # no effect here, but each costs time per request
        del client.headers[name]
    return client


class RetryingClient:
    """Client for `base_url` with the bearer token `token`.

    Refused requests wait at `gate` (None: the gate of URL and token in `quota`), unless `wait_for_quota` is False, here
    or for one request: single machines have no quota, so their refusals are retried like outages. `http` are open
    connections (`open_connections`) that others use too; they stay open. `transport` is for tests.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        timeouts: RemoteTimeouts | None = None,
        quota: QuotaManager | None = None,
        gate: QuotaGate | None = None,
        wait_for_quota: bool = True,
        transport: httpx2.AsyncBaseTransport | None = None,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        self.base_url = check_base_url(base_url, "base URL")
        self.timeouts = timeouts or RemoteTimeouts()
        self.quota = quota or QuotaManager()
        self.wait_for_quota = wait_for_quota
        self.gate = gate or self.quota.gate(self.base_url, token)
        self._transport = transport
        self._urls: dict[str, httpx2.URL] = {}
        self._lent = http
        self._is_closed = False
        self.http = http or self._open_http()
        self.headers = {"authorization": f"Bearer {token}"} if token else {}

    @overload
    async def send(self, method: str, path: str, *, parse: Parse[Result], **arguments: Any) -> Result: ...

    @overload
    async def send(self, method: str, path: str, *, parse: None = None, **arguments: Any) -> httpx2.Response: ...

    async def send(  # noqa: C901
        self,
        method: str,
        path: str,
        *,
        repeatable: bool,
        acts: bool = False,
        acquires: bool = False,
        wait_for_quota: bool = True,
        may_take_s: float = 0.0,
        headers: dict[str, str] | None = None,
        parse: Parse[Any] | None = None,
        **arguments: Any,
    ) -> Any:
        """Return what `parse` (None: `server_reply`) returns for the reply. Replies that it refuses as foreign, and
        those in `RETRIED_STATUS`, count as lost.

        Raises the error that `parse` raises, `DeliveryUnknown` if the request acts and its outcome is unknown, else
        `InfrastructureError`; `ConfigError` for mistakes in certificates before the first reply.
        """
        about = f"{method} {self.base_url}{path}"
        times, timeout_s = self.timeouts, self.timeouts.step_s + may_take_s
        timeout = httpx2.Timeout(times.read_s + may_take_s, connect=times.connect_s)
        options = arguments | {"headers": self.headers | (headers or {}), "timeout": timeout}
        waits = wait_for_quota and self.wait_for_quota
        delivered = False  # whether any attempt, also before waiting for quota, may have been performed

        def failed(reason: str) -> InfrastructureError:
            return (DeliveryUnknown if acts and delivered else InfrastructureError)(f"{about}: {reason}")

        async def attempts() -> tuple[Any, Exception | None]:
            nonlocal delivered
            for attempt in range(1, times.max_attempts + 1):
                pause_s, last = self._pause_s(attempt), attempt == times.max_attempts
                if self._is_closed or self.http.is_closed:
                    raise failed("the client is closed")
                try:
                    request = self.http.build_request(method, self._url(path), **options)
                    reply = await _read_reply(await self.http.send(request, stream=True))
                except ForeignReply as unreadable:  # another attempt would read as much again
                    delivered = True
                    raise failed(str(unreadable)) from None
                except httpx2.TransportError as error:
                    if (mistake := tls_mistake(error)) is not None and self.base_url not in _reached:
                        raise ConfigError(f"{about}: {mistake}") from error
                    was_sent, cause = not isinstance(error, NOT_SENT_ERRORS), error
                    reason = connection_failure(error, self.base_url)
                else:
                    _reached.add(self.base_url)
                    signal = quota_signal_from_reply(reply, acquires=acquires, now_s=self.quota.clock.wall())
                    is_refusal = signal is not None and is_own_refusal(reply)
                    if signal is not None and (is_refusal or repeatable):
                        delivered = delivered or not is_refusal
                        if waits or last:
                            raise QuotaExceeded(signal, about)
                        await asyncio.sleep(min(times.max_backoff_s, max(signal.retry_after_s or 0.0, pause_s)))
                        continue
                    was_sent, reason, cause = True, f"{reply.status_code}", None
                    if reply.status_code in RETRIED_STATUS:
                        was_sent = not (reply.status_code in NOT_PERFORMED_STATUS and is_own_refusal(reply))
                    else:
                        try:
                            return (parse or server_reply)(reply), None
                        except ForeignReply as foreign:
                            reason = str(foreign)
                        except Exception as error:
                            if delivered and acts and reply.status_code in NOT_REMEMBERED_STATUS:
                                return None, DeliveryUnknown(f"{about}: an earlier attempt got no reply; now: {error}")
                            return None, error
                delivered = delivered or was_sent
                if (was_sent and not repeatable) or last:
                    raise failed(
                        f"no reply in {attempt} {'attempt' if attempt == 1 else 'attempts'} ({reason})"
                    ) from cause
                await asyncio.sleep(pause_s)
            raise AssertionError("the last attempt returns or raises")

        try:
            async with pausable_timeout.pausable_timeout(timeout_s):
                gate = self.gate.desktops if acquires else self.gate
                result, reported = await (gate.run(attempts) if waits else attempts())
        except QuotaExceeded as error:  # without waiting for quota
            if acts and delivered:
                raise DeliveryUnknown(str(error)) from error
            raise
        except TimeoutError:
            kind = DeliveryUnknown if acts else InfrastructureError
            raise kind(f"{about}: timed out after {timeout_s:g} s") from None
        if reported is not None:
            if acquires:
                self.gate.desktops.released()  # nothing was acquired
            raise reported
        return result

    def _pause_s(self, attempt: int) -> float:
        return min(self.timeouts.max_backoff_s, self.timeouts.initial_backoff_s * 2 ** (attempt - 1))

    def _url(self, path: str) -> httpx2.URL:
        """Cached: parsing a URL takes as long as the rest of a small request."""
        found = self._urls.get(path)
        if found is None:
            if len(self._urls) >= MAX_CACHED_URLS:
                self._urls.clear()
            found = self._urls[path] = httpx2.URL(self.base_url + path)
        return found

    async def move(self, base_url: str) -> None:
        """Switch to another URL, after a reset that changed the machine's address."""
        base_url = check_base_url(base_url, "base URL")
        if base_url != self.base_url:
            old, self.base_url = self.http, base_url
            self._urls.clear()
            self.http = self._open_http()
            if old is not self._lent:
                await old.aclose()

    def _open_http(self) -> httpx2.AsyncClient:
        return open_connections(self.base_url, self._transport)

    async def close(self) -> None:
        """Close connections, unless they or the transport were passed in. Idempotent."""
        self._is_closed = True
        if self._transport is None and self.http is not self._lent:
            await self.http.aclose()
