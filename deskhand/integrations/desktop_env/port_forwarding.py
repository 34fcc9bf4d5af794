"""Forwards loopback ports to a leased desktop. Used by `server_provider`; standard library only, in a thread of its
own.

This process sends the key, not the connecting program: any local program may use the ports while the lease lasts, as
with a local virtual machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

from deskhand.errors import InfrastructureError
from deskhand.osworld.sync_loop import SyncLoop
from deskhand.server.stream_copy import copy_stream

CONNECT_TIMEOUT_S = 30.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


def direct_connection(host: str, port: int, secure: bool) -> Connect:
    """Return a function that connects to a port of the server, with TLS if `secure`."""

    async def connect() -> Streams:
        return await asyncio.open_connection(host, port, ssl=ssl.create_default_context() if secure else None)

    return connect


def tunnel_connection(host: str, port: int, secure: bool, target: str, key: str | None) -> Connect:
    """Return a function that connects to `target` (`<lease>:<port>`) through the server's tunnel port. It raises
    `ConnectionRefusedError`."""
    authorization = [f"Authorization: Bearer {key}"] if key else []
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: 127.0.0.1:{port}", *authorization, "", ""]
    connect_directly = direct_connection(host, port, secure)

    async def connect() -> Streams:
        reader, writer = await connect_directly()
        try:
            writer.write("\r\n".join(lines).encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if head.split()[1:2] != [b"200"]:
                raise ConnectionRefusedError(f"{host}:{port}: {head.splitlines()[0].decode(errors='replace')}")
        except BaseException:
            writer.close()
            raise
        return reader, writer

    return connect


class PortForwards:
    """Listens on a free port of 127.0.0.1 for each connection function, in order (`ports`), until `close`."""

    def __init__(self, ways: list[Connect]) -> None:
        self.ports: list[int] = []
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = SyncLoop()
        self._loop.run(self._listen(ways))

    async def _listen(self, ways: list[Connect]) -> None:
        for way in ways:

            async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Connect = way) -> None:
                await self._join(way, reader, writer)

            server = await asyncio.start_server(join, "127.0.0.1", 0)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def _join(self, way: Connect, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    far_reader, far_writer = await way()
                try:
                    await asyncio.gather(copy_stream(reader, far_writer), copy_stream(far_reader, writer))
                finally:
                    far_writer.close()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Close every connection. Idempotent."""
        with contextlib.suppress(InfrastructureError):
            self._loop.run(self._end())
        self._loop.close()
