"""The command `deskhand serve`. Invariant: it is refused before a desktop starts when others could use it without a key."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Literal


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 8700,
    desktops: int = 1,
    spares: int = 1,
    screen: str = "1920x1080",
    accessibility: bool = True,
    idle_s: float = 600.0,
    book: Path | None = None,
    key_file: Path | None = None,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    machine: list[str] | None = None,
    machine_kind: Literal["osworld", "waa"] = "osworld",
    keep_state: bool = False,
    monitor_port: int | None = None,
    revert: str = "",
) -> None:
    """Serve desktops over HTTP, in OSWorld's protocol and Deskhand's own; the key is read from DESKHAND_SERVER_API_KEY or --key-file.

    Parameters
    ----------
    host
        The address to listen on; anything but loopback needs a key.
    port
        The bridge's own port; the ports after it are the desktops', one for each, and the next one is that of the tunnels.
    desktops
        How many desktops are leased at a time at most.
    spares
        How many desktops are kept ready.
    screen
        Size of a desktop's screen in pixels, WxH, when a client asks for none.
    accessibility
        Whether desktops have an accessibility tree when a client asks for neither; OSWorld's environment reads it at every step.
    idle_s
        A lease that is not used for so many seconds is given back.
    book
        Where leases are written down, so that epochs go on rising when the bridge starts again; in memory if it is left out.
    key_file
        A file with the owner's key that others cannot read.
    tls_certificate
        A file with the certificate chain, for HTTPS.
    tls_key
        A file with the certificate's private key.
    machine
        Address of a machine with OSWorld's or WAA's server, to be lent instead of embedded desktops; may be given several times.
    machine_kind
        Whose server the machines run.
    keep_state
        Take OSWorld's machines as they are: nothing brings them back to their start state.
    monitor_port
        Port of the QEMU monitor that resets a WAA machine.
    revert
        Command that brings a machine back, in one text, without a shell; {address}, {host} and {port} stand for the machine's.
    """
    from deskhand.desktop.base import DesktopSpec
    from deskhand.desktop.factory import build_machine_pool
    from deskhand.desktop.lease_store import LeaseStore
    from deskhand.desktop.local.desktop import LocalDesktop
    from deskhand.desktop.machine_pool import MachinePool
    from deskhand.desktop.pool import DesktopPool
    from deskhand.errors import ConfigError
    from deskhand.server.api_keys import check_binding, load_admin_key
    from deskhand.server.process import ServerConfig, run_until_signaled, serve_pool

    width, times, height = screen.partition("x")
    if not (times and width.isdecimal() and height.isdecimal()):
        raise ConfigError(f"--screen {screen}: write a size as WIDTHxHEIGHT, for instance --screen 1920x1080")
    if (tls_certificate is None) != (tls_key is None):
        raise ConfigError("--tls-certificate and --tls-key belong together; give both")
    if idle_s <= 0:
        raise ConfigError(f"--idle-s {idle_s:g}: give a number of seconds above 0")
    key = load_admin_key(key_file, os.environ)
    os.environ.pop("DESKHAND_SERVER_API_KEY", None)
    check_binding(host, key)
    template = DesktopSpec(width=int(width), height=int(height), accessibility=accessibility)
    settings = ServerConfig(host, port, key, idle_s, certificate=tls_certificate, certificate_key=tls_key)

    def make() -> LocalDesktop:
        return LocalDesktop(crashes_fail=False)  # OSWorld's tasks start programs and kill them

    def pool_of() -> DesktopPool | MachinePool:
        if machine:
            back = shlex.split(revert)
            kept = LeaseStore(book)
            return build_machine_pool(
                machine,
                machine_kind,
                template,
                kept,
                skip_reset=keep_state,
                qemu_monitor_port=monitor_port,
                reset_command=back,
            )
        return DesktopPool(desktops, template, spares=spares, make=make, book=LeaseStore(book))

    async def main() -> None:
        async with pool_of() as pool, serve_pool(pool, settings) as running:
            scheme = "https" if tls_certificate else "http"
            guarded = "its key is needed" if key else "open to this machine; set DESKHAND_SERVER_API_KEY to guard it"
            kind = ("machine" if machine else "desktop") + ("" if pool.size == 1 else "s")
            print(f"bridge on {scheme}://{host}:{running.port}, {pool.size} {kind}; {guarded}", flush=True)
            await running.task

    run_until_signaled(main, "the desktops are closed")
