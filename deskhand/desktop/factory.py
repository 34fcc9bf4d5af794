"""Desktop pools from the `desktop` config section.

`recipes` open a pool with `open_pool`; `deskhand serve desktops` uses `build_machine_pool`. API keys are read from
environment variables, never from the config.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2

from deskhand import registry
from deskhand.config.schema import MACHINE_BACKENDS, DesktopConfig, RemoteTimeouts
from deskhand.desktop.base import DesktopPoolProtocol, DesktopSpec
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.pool import DesktopPool
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop, ResetHook, ResetMarker
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.quota_file import QUOTA_FILE
from deskhand.desktop.remote.reset_hooks import QemuMonitor, ResetCommand
from deskhand.desktop.remote.retrying_client import RetryingClient, check_base_url, open_connections
from deskhand.desktop.remote.sandbox_api import TOKEN, endpoint_of
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.desktop.remote.waa_desktop import BASELINES_FILE, BaselineStore, WaaDesktop
from deskhand.desktop.remote.waa_server import EVALUATOR_PORT
from deskhand.errors import ConfigError

DEFAULT_API_KEY_ENV: dict[str, str] = {"server": "DESKHAND_SERVER_API_KEY", "sandbox": TOKEN}
LEASE_DB = "leases.sqlite"
"""Lease store in a run directory."""


@dataclass(frozen=True)
class PoolRequest:
    """Argument of a pool factory: a function that `desktop.backend` names and that returns an async context manager."""

    config: DesktopConfig
    spec: DesktopSpec
    size: int
    """Number of concurrent desktops."""
    run_dir: Path | None = None
    """Directory for leases and quota state."""
    on_wait: Callable[[str], None] | None = None
    """Receives one line for people whenever the set of work waiting for quota changes."""

    def lease_store(self) -> LeaseStore:
        return LeaseStore(self.run_dir / LEASE_DB if self.run_dir is not None else None)


def open_pool(
    desktop: DesktopConfig,
    spec: DesktopSpec,
    size: int,
    *,
    run_dir: Path | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> AbstractAsyncContextManager[DesktopPoolProtocol]:
    """Open the pool of `desktop.backend`; the arguments are those of `PoolRequest`.

    Raises `ConfigError` or `InfrastructureError` if no desktop starts.
    """
    return registry.resolve("desktop", desktop.backend)(PoolRequest(desktop, spec, size, run_dir, on_wait))


def open_local_pool(request: PoolRequest) -> DesktopPool:
    """Return a pool of local desktops."""
    return DesktopPool(
        request.size,
        request.spec,
        prewarm=request.config.prewarm,
        make=local_desktop_factory(request.config),
        lease_store=request.lease_store(),
        memory_request_mib=request.config.memory_request_mib,
    )


@asynccontextmanager
async def open_remote_pool(request: PoolRequest) -> AsyncIterator[DesktopPoolProtocol]:
    """Open a pool of desktops of a server, of a sandbox provider, or of existing machines."""
    desktop, on_wait = request.config, request.on_wait
    quota = QuotaManager(request.run_dir / QUOTA_FILE if request.run_dir is not None else None)
    if on_wait is not None:
        quota.listen(lambda: on_wait(quota.summary()))
    store = request.lease_store() if desktop.backend in MACHINE_BACKENDS else None
    try:
        async with build_remote_pool(desktop, request.spec, quota, run_dir=request.run_dir, lease_store=store) as pool:
            yield pool
    finally:
        if store is not None:
            store.close()


def local_desktop_factory(desktop: DesktopConfig) -> Callable[[], LocalDesktop]:
    """Return a function that creates local desktops without starting them."""
    level = None if desktop.isolation == "best" else desktop.isolation
    limits = ResourceLimits(desktop.memory_limit_mib, desktop.max_processes, desktop.disk_limit_mib)
    return lambda: LocalDesktop(
        isolation_level=level, limits=limits, settle_ms=desktop.settle_ms, settle_timeout_s=desktop.settle_timeout_s
    )


def build_remote_pool(
    desktop: DesktopConfig,
    spec: DesktopSpec,
    quota: QuotaManager,
    *,
    environment: Mapping[str, str] = os.environ,
    run_dir: Path | None = None,
    lease_store: LeaseStore | None = None,
) -> ServerPool | SandboxPool | MachinePool:
    """Return the pool of remote desktops that the config describes. Raises `ConfigError`.

    `run_dir` stores machine baselines; `lease_store` stores leases of machines.
    """
    backend, urls = desktop.backend, list(desktop.urls)
    variable = desktop.api_key_env or DEFAULT_API_KEY_ENV.get(backend)
    api_key = environment.get(variable) if variable else None
    if desktop.api_key_env and not api_key:
        raise ConfigError(f"desktop.api_key_env: environment variable {desktop.api_key_env} is not set")
    if backend == "sandbox" and not urls:
        endpoint, api_key = endpoint_of(environment)
        urls = [endpoint]
    if not urls or (backend not in MACHINE_BACKENDS and len(urls) > 1):
        raise ConfigError(
            f"desktop.urls: {backend} needs {'one URL per machine' if backend in MACHINE_BACKENDS else 'one URL'}, "
            f"got {len(urls)}"
        )
    if backend == "server":
        return ServerPool(urls[0], api_key, spec=spec, timeouts=desktop.timeouts, quota=quota)
    if backend == "sandbox":
        return SandboxPool(urls[0], api_key, spec=spec, timeouts=desktop.timeouts, quota=quota)
    return build_machine_pool(
        urls,
        "osworld" if backend == "osworld" else "waa",
        spec,
        lease_store,
        skip_reset=desktop.skip_reset,
        qemu_monitor_port=desktop.qemu_monitor_port,
        reset_command=desktop.reset_command,
        timeouts=desktop.timeouts,
        quota=quota,
        api_key=api_key,
        run_dir=run_dir,
    )


def build_machine_pool(  # noqa: PLR0913
    urls: Sequence[str],
    backend: Literal["osworld", "waa"],
    spec: DesktopSpec,
    lease_store: LeaseStore | None,
    *,
    skip_reset: bool,
    qemu_monitor_port: int | None = None,
    reset_command: Sequence[str] = (),
    timeouts: RemoteTimeouts | None = None,
    quota: QuotaManager | None = None,
    api_key: str | None = None,
    run_dir: Path | None = None,
    evaluator_port: int = EVALUATOR_PORT,
) -> MachinePool:
    """Return a pool of existing machines that run OSWorld's or WAA's server. Raises `ConfigError`.

    A machine is reset by `reset_command`, else by its QEMU monitor (WAA only). `evaluator_port` is that of WAA's
    evaluate server on each machine's host.
    """
    quota = quota or QuotaManager()
    baselines = BaselineStore(run_dir / BASELINES_FILE if run_dir is not None else None)
    urls = [check_base_url(url, "desktop.urls") for url in urls]
    commands = {url: ResetCommand(reset_command, url) for url in urls} if reset_command else {}
    markers = {url: ResetMarker() for url in urls}
    connections: dict[str, httpx2.AsyncClient] = {}

    def make(url: str) -> OsworldDesktop:
        if url not in connections:
            connections[url] = open_connections(url)
        http = connections[url]
        client = RetryingClient(url, api_key, timeouts=timeouts, quota=quota, wait_for_quota=False, http=http)
        hook: ResetHook | None = commands[url].reset if commands else None
        if backend == "osworld":
            return OsworldDesktop(client, reset_hook=hook, skip_reset=skip_reset, marker=markers[url])
        if hook is None and qemu_monitor_port:
            hook = QemuMonitor(urlsplit(url).hostname or "", qemu_monitor_port).reset
        return WaaDesktop(
            client, reset_hook=hook, hook_reboots=not commands, baselines=baselines, evaluator_port=evaluator_port
        )

    settings: dict[str, Any] = {"spec": spec, "quota": quota, "lease_store": lease_store, "timeouts": timeouts}
    return MachinePool(urls, make, backend=backend, connections=connections, **settings)
