"""The bridge as a process. Invariant: when it ends, however it is asked to, its leases are given back and its desktops are gone."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from deskhand.errors import ConfigError
from deskhand.server.active_leases import ActiveLeases, LeasablePool
from deskhand.server.api_keys import check_binding
from deskhand.server.app import create_app
from deskhand.server.auth import LeaseAuth
from deskhand.server.request_limits import RequestLimits, protocol_with_limits
from deskhand.server.tunnel import TunnelServer

MOST_REQUESTS = 512
"""Connections and requests at a time; more are answered with 503."""


@dataclass(frozen=True)
class ServerConfig:
    """Where the bridge listens. After `port` come the doors of the leases, then that of the tunnels; with 0 it takes any."""

    host: str = "127.0.0.1"
    port: int = 8700
    owner_key: str | None = None
    idle_s: float = 600.0
    bounds: RequestLimits = field(default_factory=RequestLimits)
    certificate: Path | None = None
    certificate_key: Path | None = None


class _Server(uvicorn.Server):
    """Leaves signals to the program that it runs in."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(frozen=True)
class RunningServer:
    """A bridge that serves: its own port, its leases, and how to end it."""

    port: int
    book: ActiveLeases
    stop: Callable[[], None]
    ended: asyncio.Task[None]


@asynccontextmanager
async def serve_pool(pool: LeasablePool, settings: ServerConfig) -> AsyncIterator[RunningServer]:
    """Serve a started pool while the context lasts. Raises `ConfigError` for a host without a key and a port that is taken."""
    check_binding(settings.host, settings.owner_key)
    sockets = _listen(settings.host, settings.port, 2 + pool.size)
    ports = [each.getsockname()[1] for each in sockets]
    book = ActiveLeases(pool, ports[1:-1], tunnels=ports[-1], idle_s=settings.idle_s)
    admission = LeaseAuth(book, settings.owner_key)
    app = create_app(book, admission, settings.bounds)
    server = _made(app, settings.bounds, sockets, settings.certificate, settings.certificate_key)
    tunnels = TunnelServer(book, admission, settings.bounds)
    await tunnels.listen(sockets.pop(), server.config.ssl)

    def stop() -> None:
        server.should_exit = True

    async with _started(server, sockets) as ended:
        try:
            yield RunningServer(ports[0], book, stop, ended)
        finally:
            stop()
            await tunnels.close()
            await book.close()


@asynccontextmanager
async def serve_app(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    bounds: RequestLimits | None = None,
    certificate: Path | None = None,
    certificate_key: Path | None = None,
) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    """Serve an application within the same bounds: its port, and the task that ends when it does. Raises `ConfigError`."""
    sockets = _listen(host, port, 1)
    server = _made(app, bounds or RequestLimits(), sockets, certificate, certificate_key)
    async with _started(server, sockets) as ended:
        yield sockets[0].getsockname()[1], ended


def until_told(serve: Callable[[], Coroutine[Any, Any, None]], said: str) -> None:
    """Serve until SIGTERM or Ctrl-C, then say what became of it. Raises `KeyboardInterrupt`.

    The task is cancelled instead of an exception being raised wherever the program is: within a request the server would
    take it for the request's own.
    """

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await serve()

    try:
        asyncio.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(f"interrupted; {said}", file=sys.stderr)
        raise KeyboardInterrupt from None


def _made(
    app: ASGIApp,
    bounds: RequestLimits,
    sockets: list[socket.socket],
    certificate: Path | None,
    certificate_key: Path | None,
) -> _Server:
    config = uvicorn.Config(
        app,
        http=protocol_with_limits(bounds),
        ws="none",
        lifespan="off",
        access_log=False,
        log_level=logging.ERROR,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_REQUESTS,
        h11_max_incomplete_event_size=bounds.head_bytes,
        timeout_graceful_shutdown=3,
        ssl_certfile=certificate,
        ssl_keyfile=certificate_key,
    )
    try:
        config.load()
    except OSError as error:
        for each in sockets:
            each.close()
        raise ConfigError(f"the certificate {certificate} or its key cannot be used: {error}") from None
    return _Server(config)


@asynccontextmanager
async def _started(server: _Server, sockets: list[socket.socket]) -> AsyncIterator[asyncio.Task[None]]:
    ended = asyncio.create_task(server.serve(sockets=sockets))
    try:
        while not server.started and not ended.done():  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.005)
        gc.collect()
        gc.freeze()  # a collection that goes through everything that was imported would hold up every lease
        yield ended
    finally:
        gc.unfreeze()
        server.should_exit = True
        await asyncio.gather(ended, return_exceptions=True)
        for each in sockets:
            each.close()


def _listen(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets from `port` on. Raises `ConfigError`, with none left open."""
    if not 0 <= port <= 65535 - (count - 1 if port else 0):
        raise ConfigError(
            f"--port {port}: it and the {count - 1} ports after it, of desktops and tunnels, must lie in 1..65535"
        )
    opened: list[socket.socket] = []
    wanted = port
    try:
        for index in range(count):
            wanted = port + index if port else 0
            family, kind, protocol, _, address = socket.getaddrinfo(host, wanted, type=socket.SOCK_STREAM)[0]
            opened.append(socket.socket(family, kind, protocol))
            opened[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened[-1].bind(address)
            opened[-1].listen(256)
    except OSError as error:
        for each in opened:
            each.close()
        raise ConfigError(
            f"{host}:{wanted} cannot be listened on: {error.strerror}; give another --host or --port"
        ) from None
    return opened
