"""Ports of a guest, for clients of the bridge. Invariant: a tunnel is opened for who shows a valid key, leads to the loopback of
that lease's guest and nowhere else, and ends with the lease.

A client asks as it would ask an HTTP proxy, `CONNECT <lease>:<port>` with `Authorization`, and then has the bytes of a connection
to that port in the guest's own network: of the browser's debugger, VLC's web interface, or whatever else listens there.
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
CONNECT_S = 10.0
MOST = 64
"""Tunnels of one lease at a time."""
_CHUNK = 64 << 10


class TunnelServer:
    """Answers connections with tunnels, as many as `MOST` for one lease."""

    def __init__(self, book: ActiveLeases, admission: LeaseAuth, bounds: RequestLimits) -> None:
        self._book = book
        self._admission = admission
        self._bounds = bounds
        self._open: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any] | None] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, socket: Any, tls: ssl.SSLContext | None) -> None:
        """Serve the tunnels that come in at a listening socket until `close`."""
        self._server = await asyncio.start_server(self._serve, sock=socket, ssl=tls)

    async def close(self) -> None:
        """End every tunnel. Idempotent."""
        if self._server is not None:
            self._server.close()
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its request to its end."""
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            async with asyncio.timeout(self._bounds.head_s):
                request, target, rest = await self._head(reader, writer)
            await self._tunnel(request, target, rest, reader, writer)
        except HttpError as refusal:
            await _answer(writer, refusal.status, refusal.message)
        except ConfigError as error:
            await _answer(writer, 501, str(error))
        except DeskhandError as error:
            await _answer(writer, 503, str(error))
        except (TimeoutError, OSError, h11.RemoteProtocolError):
            pass  # a client that says nothing, or nothing that is a request, gets nothing
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Request, str, bytes]:
        """The request, its target, and what came after it. Raises `Refused`, `RemoteProtocolError` or `TimeoutError`."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=self._bounds.head_bytes)
        while (event := parser.next_event()) is h11.NEED_DATA:
            parser.receive_data(await reader.read(_CHUNK))
        if not isinstance(event, h11.Request):
            raise h11.RemoteProtocolError("no request")
        if event.method != b"CONNECT":
            raise HttpError(405, "this port opens tunnels: CONNECT <lease>:<port> with Authorization: Bearer <key>")
        scope = {
            "type": "http",
            "method": "CONNECT",
            "path": "/",
            "query_string": b"",
            "headers": list(event.headers),
            "scheme": "http",
            "server": writer.get_extra_info("sockname")[:2],
        }
        return Request(scope), event.target.decode("latin-1"), parser.trailing_data[0]

    async def _tunnel(
        self, request: Request, target: str, rest: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        lease, _, port = target.rpartition(":")
        held = self._admission.by_name(request, lease)
        if not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise HttpError(400, f"{port[:20]!r} is no port; CONNECT <lease>:<port>")
        if self._open[lease] >= MOST:
            raise HttpError(429, f"this lease has {MOST} tunnels already")
        self._open[lease] += 1
        try:
            inner_reader, inner_writer = await _connected(held, int(port))
            try:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                inner_writer.write(rest)
                await self._join(held, (reader, inner_writer), (inner_reader, writer))
            finally:
                inner_writer.close()
        finally:
            self._open[lease] -= 1
            if not self._open[lease]:
                del self._open[lease]

    async def _join(self, held: ActiveLease, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Pass bytes until both sides have ended, one fails, the lease is over, or nothing came for as long as a lease may idle."""
        heard_at = self._book.now()

        def heard() -> None:
            nonlocal heard_at
            held.used = heard_at = self._book.now()

        async def end() -> None:
            while not held.is_released and self._book.now() - heard_at < self._book.idle_s:  # noqa: ASYNC110 who ends it tells nobody
                await asyncio.sleep(min(1.0, self._book.idle_s / 4))

        passing = asyncio.gather(*(copy_stream(*way, heard) for way in ways))
        ending = asyncio.ensure_future(end())
        try:
            await asyncio.wait((passing, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (passing, ending):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await passing


async def _connected(held: ActiveLease, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a port of the guest's loopback. Raises `Refused` (501, 502)."""
    if not isinstance(held.desktop, HasGuestNetwork):
        raise HttpError(501, "this lease's desktop has no network that can be reached from outside")
    made = await held.desktop.socket_inside()
    made.setblocking(False)
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
            return await asyncio.open_connection(sock=made)
    except (OSError, TimeoutError) as error:
        made.close()
        why = os.strerror(error.errno) if error.errno else "no answer"
        raise HttpError(502, f"port {port} of the guest: {why}") from None


async def _answer(writer: asyncio.StreamWriter, status: int, message: str) -> None:
    """A refusal as HTTP has it; a client that is gone gets none."""
    body = json.dumps({"error": message}).encode()
    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Refused')}\r\nContent-Type: application/json\r\n"
    with contextlib.suppress(OSError):
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()


_REASONS = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 410: "Gone", 502: "Bad Gateway"}
