"""Requests to another machine. Invariant: a request that may act twice is sent again only when it was surely not carried out; when
nobody can know, the error says so.

Reads, and requests that carry an id which the other side remembers, are repeatable. A refusal for want of room (`capacity`) parks
the request at its gate, outside all deadlines and attempts.
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import httpx2

from deskhand import pausable_timeout
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.remote.quota import QuotaGate, QuotaManager
from deskhand.desktop.remote.quota_errors import QuotaExceeded, quota_signal_from_reply
from deskhand.errors import ConfigError, DeliveryUnknown, InfrastructureError

NOT_DELIVERED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
REMEMBERED_URLS = 256
MOST_BYTES = 96 << 20
"""Of a reply: a guest must not fill the memory of whoever asks it."""
httpcore2.AsyncHTTP11Connection.READ_NUM_BYTES = 1 << 20  # pyright: ignore[reportAttributeAccessIssue]
"""Of a body at a time: by 64 KiB, which is the default, a frame comes in many turns of the event loop."""
RETRIED_STATUS = (502, 503, 504)
"""What proxies answer while the server behind them is away. 503 is from one that did not pass the request on."""


def check_base_url(address: str, what: str) -> str:
    """`address` without a slash at its end. Raises `ConfigError` unless it is http(s)://host[:port][/path], without a key in it."""
    try:
        parts = urlsplit(address)
        fine = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and not parts.username
            and not parts.query
            and not parts.fragment
        )
        _ = parts.port
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(f"{what} must be http://host:port or https://host:port, without a key in it")
    return address.rstrip("/")


@functools.cache
def _trust(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Whose certificates are believed, by the two variables or as the system has it. Read once: that holds up the event loop."""
    return httpx2.create_ssl_context()


async def _whole(reply: httpx2.Response, about: str) -> httpx2.Response:
    """A reply that is read to its end. Raises `InfrastructureError` for one that is larger than anything that is asked for, and for
    one that is packed: nobody asked for that, and a little of it may unpack to more than there is memory."""
    parts, size = [], 0
    told, packing = reply.headers.get("content-length", ""), reply.headers.get("content-encoding", "identity")
    try:
        if packing != "identity":
            raise InfrastructureError(f"{about}: the reply is packed ({packing[:20]}), which was not asked for")
        if told.isdecimal() and int(told) <= MOST_BYTES:
            await reply.aread()
            return reply
        async for part in reply.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise InfrastructureError(f"{about}: the reply has more than {MOST_BYTES} bytes")
    finally:
        await reply.aclose()
    headers = {name: value for name, value in reply.headers.items() if name != "transfer-encoding"}
    return httpx2.Response(reply.status_code, headers=headers, content=b"".join(parts), request=reply.request)


class RetryingClient:
    """Requests to `address`, which show `token`. Refused ones wait at `gate` (None: that of the address and the token in `lot`),
    unless `parks` is False: a machine itself has no quota, so what says so is no provider, and is asked again as one that is away.
    `transport` is for tests."""

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        timeouts: RemoteTimeouts | None = None,
        lot: QuotaManager | None = None,
        gate: QuotaGate | None = None,
        parks: bool = True,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = check_base_url(address, "the address")
        self.timeouts = timeouts or RemoteTimeouts()
        self.lot = lot or QuotaManager()
        self.parks = parks
        self.gate = gate or self.lot.gate(self.address, token)
        self._transport = transport
        self._urls: dict[str, httpx2.URL] = {}
        self.http = self._client()
        self.headers = {"authorization": f"Bearer {token}"} if token else {}

    async def send(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool,
        acts: bool = False,
        acquires: bool = False,
        parks: bool = True,
        may_take_s: float = 0.0,
        headers: dict[str, str] | None = None,
        refused: Callable[[httpx2.Response], Exception | None] | None = None,
        **arguments: Any,
    ) -> httpx2.Response:
        """The reply to a request, which is not one of `PASSING`; `refused` makes an error of it, or None.

        Raises `DeliveryUnknown` when it acts and nobody can know whether it was carried out, else `InfrastructureError`.
        """
        about = f"{method} {self.address}{path}"
        times, limit_s = self.timeouts, self.timeouts.step_s + may_take_s
        timeout = httpx2.Timeout(times.read_s + may_take_s, connect=times.connect_s)
        given = arguments | {"headers": self.headers | (headers or {}), "timeout": timeout}
        delivered = (
            False  # whether it may have been carried out, by all times that it was sent, also before it was parked
        )

        def failed(said: str) -> InfrastructureError:
            return (DeliveryUnknown if acts and delivered else InfrastructureError)(f"{about}: {said}")

        async def attempts() -> httpx2.Response:
            nonlocal delivered
            for attempt in range(1, times.attempts + 1):
                pause_s, last = self._pause_s(attempt), attempt == times.attempts
                if self.http.is_closed:
                    raise failed("the connection was closed")
                try:
                    request = self.http.build_request(method, self._url(path), **given)
                    reply = await _whole(await self.http.send(request, stream=True), about)
                except httpx2.TransportError as error:
                    lost = not isinstance(error, NOT_DELIVERED)
                    said = f"{type(error).__name__} {error}".strip()
                    said += "; name the file of its authority in SSL_CERT_FILE" if _UNTRUSTED in said else ""
                    cause: Exception | None = error
                else:
                    capacity = quota_signal_from_reply(reply, acquires=acquires, now_s=self.lot.clock.wall())
                    if capacity is not None and (self.parks or last):
                        raise QuotaExceeded(capacity, about)
                    if capacity is not None:  # nobody parks it, and it was not carried out
                        await asyncio.sleep(min(times.longest_pause_s, max(capacity.retry_after_s or 0.0, pause_s)))
                        continue
                    if reply.status_code not in RETRIED_STATUS:
                        return reply
                    lost, said, cause = reply.status_code != 503, f"{reply.status_code}", None
                delivered = delivered or lost
                if (lost and not repeatable) or last:
                    raise failed(
                        f"no answer in {attempt} {'attempt' if attempt == 1 else 'attempts'} ({said})"
                    ) from cause
                await asyncio.sleep(pause_s)
            raise AssertionError("the last attempt returns or raises")

        try:
            async with pausable_timeout.pausable_timeout(limit_s):
                gate = self.gate.desktops if acquires else self.gate
                reply = await (gate.run(attempts) if parks and self.parks else attempts())
        except QuotaExceeded as refusal:  # nobody parks it
            if acts and delivered:
                raise DeliveryUnknown(str(refusal)) from refusal
            raise
        except TimeoutError:
            kind = DeliveryUnknown if acts else InfrastructureError
            raise kind(f"{about}: took longer than a step may ({limit_s:g} s)") from None
        if refused is not None and (error := refused(reply)) is not None:
            if acquires:
                self.gate.desktops.released()  # nothing was taken
            raise error
        return reply

    def _pause_s(self, attempt: int) -> float:
        """Before the attempt after this one."""
        return min(self.timeouts.longest_pause_s, self.timeouts.pause_s * 2 ** (attempt - 1))

    def _url(self, path: str) -> httpx2.URL:
        """The address of a path, read once: that takes as long as all else of a small request."""
        found = self._urls.get(path)
        if found is None:
            if len(self._urls) >= REMEMBERED_URLS:
                self._urls.clear()
            found = self._urls[path] = httpx2.URL(self.address + path)
        return found

    async def move(self, address: str) -> None:
        """What is asked for is at another address now."""
        address = check_base_url(address, "the address")
        if address != self.address:
            old, self.address = self.http, address
            self._urls.clear()
            self.http = self._client()
            await old.aclose()

    def _client(self) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=256)
        trust = _trust(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        client = httpx2.AsyncClient(base_url=self.address, transport=self._transport, limits=limits, verify=trust)
        for name in ("accept", "accept-encoding", "connection"):  # say nothing here, and cost time in each request
            del client.headers[name]
        return client

    async def close(self) -> None:
        """Idempotent. A transport that was given is its giver's."""
        if self._transport is None:
            await self.http.aclose()
