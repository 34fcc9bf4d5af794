"""Ports of this machine that lead into a bridge's desktop. Invariant: they listen on the loopback alone, and it is this process
that shows the key to the bridge, never who connects.

It runs on Python's standard library alone, where `desktop-env` does, in a thread of its own. Who may connect to a port of this
machine's loopback may use what is behind it while the lease lasts, as with any port of a virtual machine that runs here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

from deskhand.errors import InfrastructureError
from deskhand.osworld.sync_loop import SyncLoop
from deskhand.server.stream_copy import copy_stream

CONNECT_S = 30.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


def direct_connection(host: str, port: int, secure: bool) -> Connect:
    """Connects to a port of the bridge, with TLS where `secure`."""

    async def connect() -> Streams:
        return await asyncio.open_connection(host, port, ssl=ssl.create_default_context() if secure else None)

    return connect


def tunnel_connection(host: str, port: int, secure: bool, target: str, key: str | None) -> Connect:
    """Connects to `target` (`<lease>:<port>`) by the bridge's port for tunnels. Raises `ConnectionRefusedError`."""
    lines = [
        f"CONNECT {target} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        *([f"Authorization: Bearer {key}"] if key else []),
        "",
        "",
    ]
    straight_there = direct_connection(host, port, secure)

    async def connect() -> Streams:
        reader, writer = await straight_there()
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
    """Listens on a free port of 127.0.0.1 for each way to connect, `ports` in their order, until `close`."""

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
                async with asyncio.timeout(CONNECT_S):
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
        """End every connection. Idempotent."""
        with contextlib.suppress(InfrastructureError):
            self._loop.run(self._end())
        self._loop.close()
