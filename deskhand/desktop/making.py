"""Pools of desktops on other machines, from settings. Invariant: keys come from variables of the environment, never from a setting.

`osworld` and `waa` take addresses of machines, one for each desktop; `bridge` and `gateway` take one address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

from deskhand.desktop.base import Template
from deskhand.desktop.bridge import BridgePool
from deskhand.desktop.gateway import GatewayPool
from deskhand.desktop.leases import LeaseBook
from deskhand.desktop.machines import MachinePool
from deskhand.desktop.osworld import OsworldDesktop, Proof, Revert
from deskhand.desktop.remote import first_looks
from deskhand.desktop.remote.link import Link, Timeouts, check_address
from deskhand.desktop.remote.parking import ParkingLot
from deskhand.desktop.remote.qemu import QemuMonitor
from deskhand.desktop.remote.reverting import RevertCommand
from deskhand.desktop.remote.sandboxes import TOKEN, endpoint_of
from deskhand.desktop.waa import WaaDesktop
from deskhand.errors import ConfigError

RemoteKind = Literal["bridge", "gateway", "osworld", "waa"]
DEFAULT_VARIABLES: dict[str, str] = {"bridge": "DESKHAND_BRIDGE_KEY", "gateway": TOKEN}
RemotePool = BridgePool | GatewayPool | MachinePool


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


def remote_pool(
    kind: RemoteKind,
    settings: RemoteSettings,
    template: Template,
    lot: ParkingLot,
    environment: Mapping[str, str],
    folder: Path | None = None,
    book: LeaseBook | None = None,
) -> RemotePool:
    """The pool that the settings describe; what is known of its machines is kept in `folder`, and their leases in `book`. Raises
    `ConfigError`."""
    times = Timeouts(settings.connect_s, settings.read_s, settings.op_s, settings.step_s, settings.episode_s)
    variable = settings.key_variable or DEFAULT_VARIABLES.get(kind)
    key = environment.get(variable) if variable else None
    if settings.key_variable and not key:
        raise ConfigError(f"the environment variable {settings.key_variable} (desktop.key_variable) is not set")
    addresses = list(settings.addresses)
    if kind == "gateway" and not addresses:
        endpoint, key = endpoint_of(environment)
        addresses = [endpoint]
    if not addresses or (kind in ("bridge", "gateway") and len(addresses) > 1):
        raise ConfigError(f"desktop.addresses: {kind} takes {'one address' if kind in DEFAULT_VARIABLES else 'an address each'}")
    if kind == "bridge":
        return BridgePool(addresses[0], key, template=template, timeouts=times, lot=lot)
    if kind == "gateway":
        return GatewayPool(addresses[0], key, template=template, timeouts=times, lot=lot)

    return machine_pool(
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


def machine_pool(
    addresses: Sequence[str],
    kind: Literal["osworld", "waa"],
    template: Template,
    book: LeaseBook | None,
    *,
    keep_state: bool,
    monitor_port: int | None,
    revert: Sequence[str] = (),
    timeouts: Timeouts | None = None,
    lot: ParkingLot | None = None,
    key: str | None = None,
    folder: Path | None = None,
) -> MachinePool:
    """A pool of machines with the server of OSWorld or WAA, brought back by the command `revert` if it has words.

    Raises `ConfigError` for an address that is none and a command that is not here."""
    lot = lot or ParkingLot()
    looks = first_looks.FirstLooks(folder / first_looks.FILE if folder is not None else None)
    places = [check_address(each, "a machine's address") for each in addresses]
    commands = {address: RevertCommand(revert, address) for address in places} if revert else {}
    proofs = {address: Proof() for address in places}

    def make(address: str) -> OsworldDesktop:
        link = Link(address, key, timeouts=timeouts, lot=lot, parks=False)
        back: Revert | None = commands[address].reset if commands else None
        if kind == "osworld":
            return OsworldDesktop(link, revert=back, keep_state=keep_state, proof=proofs[address])
        if back is None and monitor_port:
            back = QemuMonitor(urlsplit(address).hostname or "", monitor_port).reset
        return WaaDesktop(link, revert=back, reboots=not commands, first_looks=looks)

    return MachinePool(places, make, template=template, lot=lot, book=book)
