"""CONNECT tunnels from clients to ports of a guest's loopback.

Started by `server.process` on its own port. A client sends `CONNECT <lease>:<port>` with `Authorization`, as to an
HTTP proxy, and gets a connection to e.g. Chromium's debugger. A tunnel closes when its lease is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections import Counter
from typing import Any

import h11
import structlog
from starlette.requests import Request

from deskhand.desktop.base import HasGuestNetwork
from deskhand.errors import ConfigError, DeskhandError
from deskhand.server.active_leases import ActiveLease, ActiveLeases
from deskhand.server.auth import LeaseAuth
from deskhand.server.http_errors import HttpError
from deskhand.server.request_limits import RequestLimits
from deskhand.server.stream_copy import copy_stream

log = structlog.get_logger()
CONNECT_TIMEOUT_S = 10.0
MAX_TUNNELS = 64
"""Concurrent tunnels per lease."""
_CHUNK = 64 << 10


class TunnelServer:
    """Accepts CONNECT requests, up to `MAX_TUNNELS` per lease."""

    def __init__(self, leases: ActiveLeases, auth: LeaseAuth, limits: RequestLimits) -> None:
        self._leases = leases
        self._auth = auth
        self._limits = limits
        self._num_open: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any] | None] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, socket: Any, tls: ssl.SSLContext | None) -> None:
        """Accept connections at a listening socket until `close`."""
        self._server = await asyncio.start_server(self._serve, sock=socket, ssl=tls)

    async def close(self) -> None:
        """Close every tunnel. Idempotent."""
        if self._server is not None:
            self._server.close()
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            async with asyncio.timeout(self._limits.head_s):
                request, target, rest = await self._read_request(reader, writer)
            await self._open_tunnel(request, target, rest, reader, writer)
        except HttpError as error:
            await _reply_error(writer, error.status, error.message)
        except ConfigError as error:
            await _reply_error(writer, 501, str(error))
        except DeskhandError as error:
            await _reply_error(writer, 503, str(error))
        except (TimeoutError, OSError, h11.RemoteProtocolError):
            pass  # no reply to a client that sends nothing, or no HTTP request
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _read_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Request, str, bytes]:
        """Return the request, its target, and bytes that followed it."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        while (event := parser.next_event()) is h11.NEED_DATA:
            parser.receive_data(await reader.read(_CHUNK))
        if not isinstance(event, h11.Request):
            raise h11.RemoteProtocolError("no request")
        if event.method != b"CONNECT":
            message = "this port only opens tunnels; send CONNECT <lease>:<port> with Authorization: Bearer <key>"
            raise HttpError(405, message)
        scope = {"type": "http", "scheme": "http", "method": "CONNECT", "path": "/", "query_string": b""}
        server = writer.get_extra_info("sockname")[:2]
        request = Request(scope | {"headers": list(event.headers), "server": server})
        return request, event.target.decode("latin-1"), parser.trailing_data[0]

    async def _open_tunnel(
        self, request: Request, target: str, rest: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        lease_id, _, port = target.rpartition(":")
        lease = self._auth.by_id(request, lease_id)
        if not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise HttpError(400, f"invalid port {port[:20]!r}; send CONNECT <lease>:<port>")
        if self._num_open[lease_id] >= MAX_TUNNELS:
            raise HttpError(429, f"this lease already has {MAX_TUNNELS} tunnels")
        self._num_open[lease_id] += 1
        try:
            inner_reader, inner_writer = await _connect_to_guest(lease, int(port))
            try:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                inner_writer.write(rest)
                await self._copy_until_end(lease, (reader, inner_writer), (inner_reader, writer))
            finally:
                inner_writer.close()
        finally:
            self._num_open[lease_id] -= 1
            if not self._num_open[lease_id]:
                del self._num_open[lease_id]

    async def _copy_until_end(
        self, lease: ActiveLease, *streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        """Copy until both sides end, one fails, the lease is released, or no data arrives for the lease's idle time."""
        active_at = self._leases.now()

        def on_data() -> None:
            nonlocal active_at
            lease.last_used = active_at = self._leases.now()

        async def wait_for_end() -> None:
            while not lease.is_released and self._leases.now() - active_at < self._leases.idle_s:  # noqa: ASYNC110
                await asyncio.sleep(min(1.0, self._leases.idle_s / 4))

        copying = asyncio.gather(*(copy_stream(*pair, on_data) for pair in streams))
        ending = asyncio.ensure_future(wait_for_end())
        try:
            await asyncio.wait((copying, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (copying, ending):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await copying


async def _connect_to_guest(lease: ActiveLease, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port of the guest's loopback. Raises `HttpError` (501, 502)."""
    if not isinstance(lease.desktop, HasGuestNetwork):
        raise HttpError(501, "this desktop's guest network cannot be reached from outside")
    guest_socket = await lease.desktop.socket_inside()
    guest_socket.setblocking(False)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().sock_connect(guest_socket, ("127.0.0.1", port))
            return await asyncio.open_connection(sock=guest_socket)
    except (OSError, TimeoutError) as error:
        guest_socket.close()
        reason = os.strerror(error.errno) if error.errno else "timed out"
        raise HttpError(502, f"guest port {port}: {reason}") from None


async def _reply_error(writer: asyncio.StreamWriter, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Refused')}\r\nContent-Type: application/json\r\n"
    with contextlib.suppress(OSError):
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()


_REASONS = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 410: "Gone", 502: "Bad Gateway"}
