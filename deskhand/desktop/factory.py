"""Pools of desktops on other machines, from settings. Invariant: keys come from variables of the environment, never from a setting.

`osworld` and `waa` take addresses of machines, one for each desktop; `bridge` and `gateway` take one address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.remote import baselines
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop, ResetHook, ResetMarker
from deskhand.desktop.remote.qemu_monitor import QemuMonitor
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.reset_command import ResetCommand
from deskhand.desktop.remote.retrying_client import RemoteTimeouts, RetryingClient, check_base_url
from deskhand.desktop.remote.sandbox_api import TOKEN, endpoint_of
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.desktop.remote.waa_desktop import WaaDesktop
from deskhand.errors import ConfigError

RemoteKind = Literal["bridge", "gateway", "osworld", "waa"]
DEFAULT_API_KEY_ENV: dict[str, str] = {"bridge": "DESKHAND_SERVER_API_KEY", "gateway": TOKEN}
RemotePool = ServerPool | SandboxPool | MachinePool


class RemoteSettings(Protocol):
    """What a pool is made from (`config.DesktopSection`)."""

    @property
    def addresses(self) -> tuple[str, ...]: ...
    @property
    def key_variable(self) -> str | None: ...
    @property
    def keep_state(self) -> bool: ...
    @property
    def monitor_port(self) -> int | None: ...
    @property
    def revert(self) -> tuple[str, ...]: ...
    @property
    def connect_s(self) -> float: ...
    @property
    def read_s(self) -> float: ...
    @property
    def op_s(self) -> float: ...
    @property
    def step_s(self) -> float: ...
    @property
    def episode_s(self) -> float: ...


def build_remote_pool(
    kind: RemoteKind,
    settings: RemoteSettings,
    template: DesktopSpec,
    lot: QuotaManager,
    environment: Mapping[str, str],
    folder: Path | None = None,
    book: LeaseStore | None = None,
) -> RemotePool:
    """The pool that the settings describe; what is known of its machines is kept in `folder`, and their leases in `book`. Raises
    `ConfigError`."""
    times = RemoteTimeouts(settings.connect_s, settings.read_s, settings.op_s, settings.step_s, settings.episode_s)
    variable = settings.key_variable or DEFAULT_API_KEY_ENV.get(kind)
    key = environment.get(variable) if variable else None
    if settings.key_variable and not key:
        raise ConfigError(f"the environment variable {settings.key_variable} (desktop.api_key_env) is not set")
    addresses = list(settings.addresses)
    if kind == "gateway" and not addresses:
        endpoint, key = endpoint_of(environment)
        addresses = [endpoint]
    if not addresses or (kind in ("bridge", "gateway") and len(addresses) > 1):
        raise ConfigError(
            f"desktop.urls: {kind} takes {'one address' if kind in DEFAULT_API_KEY_ENV else 'an address each'}"
        )
    if kind == "bridge":
        return ServerPool(addresses[0], key, template=template, timeouts=times, lot=lot)
    if kind == "gateway":
        return SandboxPool(addresses[0], key, template=template, timeouts=times, lot=lot)

    return build_machine_pool(
        addresses,
        kind,
        template,
        book,
        keep_state=settings.keep_state,
        monitor_port=settings.monitor_port,
        revert=settings.revert,
        timeouts=times,
        lot=lot,
        key=key,
        folder=folder,
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

    return MachinePool(places, make, template=template, lot=lot, book=book)
