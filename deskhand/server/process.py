"""The desktop server as a process: listening sockets, uvicorn, signals.

Started by `deskhand serve desktops` through `serve_pool`; `serve_app` runs the sandbox gateway. However the process
stops, all leases are released and all desktops closed.
"""

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

import structlog
import uvicorn
from starlette.types import ASGIApp

from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.pool import DesktopPool
from deskhand.errors import ConfigError
from deskhand.server.active_leases import ActiveLeases
from deskhand.server.api_keys import check_binding
from deskhand.server.app import create_app
from deskhand.server.auth import LeaseAuth
from deskhand.server.request_limits import RequestLimits, protocol_with_limits
from deskhand.server.tunnel import TunnelServer

MAX_CONNECTIONS = 512
"""Concurrent connections and requests; further ones get 503."""


@dataclass(frozen=True)
class ServerConfig:
    """Where and how a server listens. A port per lease and the tunnel port follow `port`; 0 picks free ports."""

    host: str = "127.0.0.1"
    port: int = 8700
    admin_key: str | None = None
    idle_s: float = 600.0
    limits: RequestLimits = field(default_factory=RequestLimits)
    certificate: Path | None = None
    certificate_key: Path | None = None


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(frozen=True)
class RunningServer:
    port: int
    leases: ActiveLeases
    task: asyncio.Task[None]


@asynccontextmanager
async def serve_pool(pool: DesktopPool | MachinePool, settings: ServerConfig) -> AsyncIterator[RunningServer]:
    """Serve a started pool inside the context. Raises `ConfigError` if the binding is insecure or a port is taken."""
    check_binding(settings.host, settings.admin_key)
    sockets = _listen(settings.host, settings.port, 2 + pool.size)
    ports = [each.getsockname()[1] for each in sockets]
    leases = ActiveLeases(pool, ports[1:-1], tunnel_port=ports[-1], idle_s=settings.idle_s)
    auth = LeaseAuth(leases, settings.admin_key)
    app = create_app(leases, auth, settings.limits)
    server = _build_server(app, settings, sockets)
    tunnels = TunnelServer(leases, auth, settings.limits)
    await tunnels.listen(sockets.pop(), server.config.ssl)
    async with _run_server(server, sockets) as task:
        try:
            yield RunningServer(ports[0], leases, task)
        finally:
            server.should_exit = True
            await tunnels.close()
            await leases.close()


@asynccontextmanager
async def serve_app(app: ASGIApp, settings: ServerConfig) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    """Serve an application with the same limits; yields its port and its task. Raises `ConfigError`."""
    sockets = _listen(settings.host, settings.port, 1)
    server = _build_server(app, settings, sockets)
    async with _run_server(server, sockets) as task:
        yield sockets[0].getsockname()[1], task


def run_until_signaled(serve: Callable[[], Coroutine[Any, Any, None]], message: str) -> None:
    """Run `serve` until SIGTERM or Ctrl-C, then raise `KeyboardInterrupt` with `message`.

    The task is canceled; an exception raised inside a request would be handled as an error of that request. Tracebacks
    in the log omit local variables, which contain keys.
    """
    plain = structlog.dev.plain_traceback
    renderer = structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty(), exception_formatter=plain)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await serve()

    try:
        asyncio.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise KeyboardInterrupt(f"interrupted; {message}") from None


def _build_server(app: ASGIApp, settings: ServerConfig, sockets: list[socket.socket]) -> _Server:
    config = uvicorn.Config(
        app,
        http=protocol_with_limits(settings.limits),
        ws="none",
        lifespan="off",
        access_log=False,
        log_level=logging.ERROR,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=settings.limits.head_bytes,
        timeout_graceful_shutdown=3,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.certificate_key,
    )
    try:
        config.load()
    except OSError as error:
        for each in sockets:
            each.close()
        raise ConfigError(_tls_problem(settings, error)) from None
    return _Server(config)


def _tls_problem(settings: ServerConfig, error: OSError) -> str:
    for option, path in (("certificate", settings.certificate), ("key", settings.certificate_key)):
        try:
            content = path.read_bytes() if path is not None else b""
        except OSError as problem:
            return f"--tls-{option}: {path} cannot be read: {problem.strerror}; check the path and its permissions"
        if b"-----BEGIN " not in content:
            return f"--tls-{option}: {path} is not in PEM format; convert it with openssl"
    if "KEY_VALUES_MISMATCH" in str(error):
        return f"--tls-key: {settings.certificate_key} is not the key of {settings.certificate}; pass that key"
    return f"--tls-certificate: {settings.certificate} and its key cannot be loaded: {error}; create them again"


@asynccontextmanager
async def _run_server(server: _Server, sockets: list[socket.socket]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(server.serve(sockets=sockets))
    try:
        while not server.started and not task.done():  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.005)
        gc.collect()
        gc.freeze()  # a full collection of all imported modules would delay every lease
        yield task
    finally:
        gc.unfreeze()
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        for each in sockets:
            each.close()


def _listen(host: str, port: int, count: int) -> list[socket.socket]:
    """Return `count` listening sockets from `port` on. Raises `ConfigError` and leaves none open."""
    if not 0 <= port <= 65535 - (count - 1 if port else 0):
        raise ConfigError(
            f"--port {port}: it and the next {count - 1} ports (desktops and tunnels) must be in 1..65535"
        )
    opened: list[socket.socket] = []
    next_port = port
    try:
        for index in range(count):
            next_port = port + index if port else 0
            family, kind, protocol, _, address = socket.getaddrinfo(host, next_port, type=socket.SOCK_STREAM)[0]
            opened.append(socket.socket(family, kind, protocol))
            opened[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened[-1].bind(address)
            opened[-1].listen(256)
    except OSError as error:
        for each in opened:
            each.close()
        message = f"{host}:{next_port}: cannot listen: {error.strerror}; choose another --host or --port"
        raise ConfigError(message) from None
    return opened
