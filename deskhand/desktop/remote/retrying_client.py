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
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import httpx2

from deskhand import pausable_timeout
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


@dataclass(frozen=True)
class RemoteTimeouts:
    """Seconds: `connect_s` for a connection; `read_s` for the answer to a look, and added to what an operation itself may take;
    `op_s` the most that one operation may take itself; `step_s` for a whole step, with everything that is sent again;
    `episode_s` for an episode. Parked time counts in none.

    A request is sent `attempts` times at most, with `pause_s` before the second and twice as long before each further one.
    """

    connect_s: float = 5.0
    read_s: float = 20.0
    op_s: float = 120.0
    step_s: float = 300.0
    episode_s: float = 3600.0
    attempts: int = 6
    pause_s: float = 0.2
    longest_pause_s: float = 10.0


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


@dataclass
class _Sent:
    """What is known of a request over all times that it was sent, also before it was parked."""

    delivered: bool = False
    """Whether it may have been carried out."""


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
        self.sent_again = 0
        """Requests that were sent a second time or more."""

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
        sent = _Sent()

        async def attempt() -> httpx2.Response:
            arguments["headers"] = self.headers | (headers or {})
            return await self._attempts(method, path, about, repeatable, acts, acquires, may_take_s, arguments, sent)

        try:
            async with pausable_timeout.pausable_timeout(self.timeouts.step_s + may_take_s):
                gate = self.gate.desktops if acquires else self.gate
                reply = await (gate.run(attempt) if parks and self.parks else attempt())
        except QuotaExceeded as refusal:  # nobody parks it
            if acts and sent.delivered:
                raise DeliveryUnknown(str(refusal)) from refusal
            raise
        except TimeoutError:
            kind = DeliveryUnknown if acts else InfrastructureError
            raise kind(f"{about}: took longer than a step may ({self.timeouts.step_s + may_take_s:g} s)") from None
        if refused is not None and (error := refused(reply)) is not None:
            if acquires:
                self.gate.desktops.released()  # nothing was taken
            raise error
        return reply

    async def _attempts(
        self,
        method: str,
        path: str,
        about: str,
        repeatable: bool,
        acts: bool,
        acquires: bool,
        may_take_s: float,
        given: dict[str, Any],
        sent: _Sent,
    ) -> httpx2.Response:
        times = self.timeouts
        timeout = httpx2.Timeout(times.read_s + may_take_s, connect=times.connect_s)
        for attempt in range(1, times.attempts + 1):
            self.sent_again += attempt > 1
            try:
                request = self.http.build_request(method, self._url(path), timeout=timeout, **given)
                reply = await _whole(await self.http.send(request, stream=True), about)
            except httpx2.TransportError as error:
                lost = not isinstance(error, NOT_DELIVERED)
                said = f"{type(error).__name__} {error}".strip()
                said += "; name the file of its authority in SSL_CERT_FILE" if _UNTRUSTED in said else ""
                cause: Exception | None = error
            else:
                capacity = quota_signal_from_reply(reply, acquires=acquires, now_s=self.lot.clock.wall())
                if capacity is not None and (self.parks or attempt == times.attempts):
                    raise QuotaExceeded(capacity, about)
                if capacity is not None:  # nobody parks it, and it was not carried out
                    await asyncio.sleep(
                        min(times.longest_pause_s, max(capacity.retry_after_s or 0.0, self._pause_s(attempt)))
                    )
                    continue
                if reply.status_code not in RETRIED_STATUS:
                    return reply
                lost, said, cause = reply.status_code != 503, f"{reply.status_code}", None
            sent.delivered = sent.delivered or lost
            unknown = acts and sent.delivered
            if (lost and not repeatable) or attempt == times.attempts:
                kind = DeliveryUnknown if unknown else InfrastructureError
                raise kind(
                    f"{about}: no answer in {attempt} {'attempt' if attempt == 1 else 'attempts'} ({said})"
                ) from cause
            await asyncio.sleep(self._pause_s(attempt))
        raise AssertionError("the last attempt returns or raises")

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
        """Idempotent."""
        await self.http.aclose()
