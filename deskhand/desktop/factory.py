"""Pools of desktops from settings. Invariant: keys come from variables of the environment, never from a setting, and what is opened
here is closed here.

`osworld` and `waa` take addresses of machines, one for each desktop; `bridge` and `gateway` take one address.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from deskhand.config.schema import MACHINE_BACKENDS, DesktopConfig, RemoteTimeouts
from deskhand.desktop.base import DesktopPoolProtocol, DesktopSpec
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.pool import DesktopPool
from deskhand.desktop.remote import baselines
from deskhand.desktop.remote import quota as quota_module
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop, ResetHook, ResetMarker
from deskhand.desktop.remote.qemu_monitor import QemuMonitor
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.reset_command import ResetCommand
from deskhand.desktop.remote.retrying_client import RetryingClient, check_base_url
from deskhand.desktop.remote.sandbox_api import TOKEN, endpoint_of
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.desktop.remote.waa_desktop import WaaDesktop
from deskhand.errors import ConfigError

DEFAULT_API_KEY_ENV: dict[str, str] = {"bridge": "DESKHAND_SERVER_API_KEY", "gateway": TOKEN}
LEASE_DB = "leases.sqlite"
"""The book of leases in a run's folder."""


@asynccontextmanager
async def open_pool(
    desktop: DesktopConfig,
    spec: DesktopSpec,
    size: int,
    *,
    run_dir: Path | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> AsyncIterator[DesktopPoolProtocol]:
    """`size` desktops at a time: of this machine, their leases booked in `run_dir`, or those of other machines, with what is
    known of their quotas there. `on_wait` is told what waits for a quota whenever that changes.

    Raises `ConfigError` or `InfrastructureError` when none starts.
    """

    def leases() -> LeaseStore:
        return LeaseStore(run_dir / LEASE_DB if run_dir is not None else None)

    if desktop.backend == "embedded":
        make = local_desktop_factory(desktop)
        async with DesktopPool(
            size, spec, spares=desktop.prewarm, make=make, book=leases(), expected_mib=desktop.memory_request_mib
        ) as pool:
            yield pool
        return
    quota = QuotaManager(run_dir / quota_module.FILE if run_dir is not None else None)
    if on_wait is not None:
        quota.listen(lambda: on_wait(quota.line()))
    book = leases() if desktop.backend in MACHINE_BACKENDS else None
    try:
        async with build_remote_pool(desktop, spec, quota, run_dir=run_dir, book=book) as pool:
            yield pool
    finally:
        if book is not None:
            book.close()


def local_desktop_factory(desktop: DesktopConfig) -> Callable[[], LocalDesktop]:
    """Makes desktops of this machine, which are not started."""
    isolation = None if desktop.isolation == "best" else desktop.isolation
    limits = ResourceLimits(desktop.memory_limit_mib, desktop.max_processes, desktop.disk_limit_mib)
    return lambda: LocalDesktop(
        isolation=isolation, limits=limits, quiet_ms=desktop.settle_ms, cap_s=desktop.settle_timeout_s
    )


def build_remote_pool(
    desktop: DesktopConfig,
    spec: DesktopSpec,
    quota: QuotaManager,
    *,
    environment: Mapping[str, str] = os.environ,
    run_dir: Path | None = None,
    book: LeaseStore | None = None,
) -> ServerPool | SandboxPool | MachinePool:
    """The pool that the settings describe; what is known of its machines is kept in `run_dir`, and their leases in `book`. Raises
    `ConfigError`."""
    kind, addresses = desktop.backend, list(desktop.urls)
    variable = desktop.api_key_env or DEFAULT_API_KEY_ENV.get(kind)
    key = environment.get(variable) if variable else None
    if desktop.api_key_env and not key:
        raise ConfigError(f"the environment variable {desktop.api_key_env} (desktop.api_key_env) is not set")
    if kind == "gateway" and not addresses:
        endpoint, key = endpoint_of(environment)
        addresses = [endpoint]
    if not addresses or (kind not in MACHINE_BACKENDS and len(addresses) > 1):
        raise ConfigError(
            f"desktop.urls: {kind} takes {'an address each' if kind in MACHINE_BACKENDS else 'one address'}"
        )
    if kind == "bridge":
        return ServerPool(addresses[0], key, template=spec, timeouts=desktop.timeouts, lot=quota)
    if kind == "gateway":
        return SandboxPool(addresses[0], key, template=spec, timeouts=desktop.timeouts, lot=quota)
    return build_machine_pool(
        addresses,
        "osworld" if kind == "osworld" else "waa",
        spec,
        book,
        keep_state=desktop.skip_reset,
        monitor_port=desktop.qemu_monitor_port,
        revert=desktop.reset_command,
        timeouts=desktop.timeouts,
        lot=quota,
        key=key,
        folder=run_dir,
    )


def build_machine_pool(
    addresses: Sequence[str],
    kind: Literal["osworld", "waa"],
    template: DesktopSpec,
    book: LeaseStore | None,
    *,
    keep_state: bool,
    monitor_port: int | None,
    revert: Sequence[str] = (),
    timeouts: RemoteTimeouts | None = None,
    lot: QuotaManager | None = None,
    key: str | None = None,
    folder: Path | None = None,
) -> MachinePool:
    """A pool of machines with the server of OSWorld or WAA, brought back by the command `revert` if it has words.

    Raises `ConfigError` for an address that is none and a command that is not here."""
    lot = lot or QuotaManager()
    looks = baselines.BaselineStore(folder / baselines.FILE if folder is not None else None)
    places = [check_base_url(each, "a machine's address") for each in addresses]
    commands = {address: ResetCommand(revert, address) for address in places} if revert else {}
    proofs = {address: ResetMarker() for address in places}

    def make(address: str) -> OsworldDesktop:
        link = RetryingClient(address, key, timeouts=timeouts, lot=lot, parks=False)
        back: ResetHook | None = commands[address].reset if commands else None
        if kind == "osworld":
            return OsworldDesktop(link, revert=back, keep_state=keep_state, proof=proofs[address])
        if back is None and monitor_port:
            back = QemuMonitor(urlsplit(address).hostname or "", monitor_port).reset
        return WaaDesktop(link, revert=back, reboots=not commands, first_looks=looks)

    return MachinePool(places, make, template=template, lot=lot, book=book, timeouts=timeouts)
