"""`deskhand serve`: desktops for other programs and machines, and one sandbox endpoint in front of several servers."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App

from deskhand.cli.common import Flag, TlsCertificate, TlsKey, check_tls, parse_size
from deskhand.errors import ConfigError

serve_app = App(name="serve", help="Serve desktops over HTTP.")


@serve_app.command(name="desktops")
def serve_desktops(  # noqa: PLR0913
    *,
    host: str = "127.0.0.1",
    port: int = 8700,
    desktops: int = 1,
    prewarm: int = 1,
    screen: str = "1920x1080",
    accessibility: bool = True,
    idle_s: float = 600.0,
    lease_db: Path | None = None,
    key_file: Path | None = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    machine: list[str] | None = None,
    machine_backend: Literal["osworld", "waa"] = "osworld",
    skip_reset: Annotated[bool, Flag] = False,
    qemu_monitor_port: int | None = None,
    reset_command: str = "",
    evaluator_port: int = 5050,
) -> None:
    """Lease desktops over HTTP, with OSWorld's API and Deskhand's own. The admin key is read from
    DESKHAND_SERVER_API_KEY or --key-file.

    Parameters
    ----------
    host
        Address to listen on; other addresses than loopback require a key.
    port
        Port of the server. The ports after it belong to the desktops, one each, and the next one to the tunnels.
    desktops
        Maximum concurrent leases.
    prewarm
        Desktops started in advance.
    screen
        Default screen size, WIDTHxHEIGHT.
    accessibility
        Provide an accessibility tree by default; OSWorld's environment reads it at every step.
    idle_s
        Release leases that have been idle for this many seconds.
    lease_db
        File for the leases, so that epochs keep rising after a restart (default: in memory).
    key_file
        File with the admin key that others cannot read.
    machine
        URL of a machine with OSWorld's or WAA's server, to lease instead of local desktops; repeatable.
    machine_backend
        Server of the machines.
    skip_reset
        Use OSWorld machines without resetting them.
    qemu_monitor_port
        Port of the QEMU monitor that resets a WAA machine.
    reset_command
        Command that resets a machine, as one string, run without a shell; {address}, {host} and {port} are replaced.
    evaluator_port
        Port of WAA's evaluate server on the host of each machine; the holder of a lease judges through this server.
    """
    from deskhand.desktop.base import DesktopSpec
    from deskhand.desktop.factory import build_machine_pool
    from deskhand.desktop.lease_store import LeaseStore
    from deskhand.desktop.local.desktop import LocalDesktop
    from deskhand.desktop.machine_pool import MachinePool
    from deskhand.desktop.pool import DesktopPool
    from deskhand.server.api_keys import API_KEY_ENV, check_binding, load_admin_key
    from deskhand.server.process import ServerConfig, run_until_signaled, serve_pool

    width, height = parse_size("--screen", screen)
    check_tls(tls_certificate, tls_key)
    if idle_s <= 0:
        raise ConfigError(f"--idle-s: must be above 0, got {idle_s:g}")
    key = load_admin_key(key_file, os.environ)
    os.environ.pop(API_KEY_ENV, None)  # desktops must not inherit it
    check_binding(host, key)
    spec = DesktopSpec(width=width, height=height, accessibility=accessibility)
    settings = ServerConfig(host, port, key, idle_s, certificate=tls_certificate, certificate_key=tls_key)

    def make() -> LocalDesktop:
        return LocalDesktop(crashes_fail=False)  # OSWorld's tasks start programs and kill them

    def build_pool() -> DesktopPool | MachinePool:
        leases = LeaseStore(lease_db)
        if not machine:
            return DesktopPool(desktops, spec, prewarm=prewarm, make=make, lease_store=leases)
        return build_machine_pool(
            machine,
            machine_backend,
            spec,
            leases,
            skip_reset=skip_reset,
            qemu_monitor_port=qemu_monitor_port,
            reset_command=shlex.split(reset_command),
            evaluator_port=evaluator_port,
        )

    async def main() -> None:
        async with build_pool() as pool, serve_pool(pool, settings) as running:
            scheme = "https" if tls_certificate else "http"
            access = "requires the admin key" if key else f"open to this machine (set {API_KEY_ENV} to require a key)"
            count = f"{pool.size} {'machine' if machine else 'desktop'}{'' if pool.size == 1 else 's'}"
            print(f"desktop server at {scheme}://{host}:{running.port}, {count}; {access}", flush=True)
            await running.task

    run_until_signaled(main, "the desktops are closed")


@serve_app.command
def sandboxes(
    *servers: str,
    host: str = "127.0.0.1",
    port: int = 8750,
    tokens_file: Path,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Serve sandboxes of one or more desktop servers. Their admin key is read from DESKHAND_SERVER_API_KEY.

    Parameters
    ----------
    servers
        URLs of desktop servers (deskhand serve desktops), with ports.
    host
        Address to listen on.
    port
        Port to listen on; 0 selects a free one.
    tokens_file
        File that others cannot read, with one token per line, optionally followed by its maximum number of sandboxes.
    """
    from deskhand.desktop.remote.retrying_client import check_base_url
    from deskhand.server.api_keys import API_KEY_ENV, load_admin_key, read_private_file
    from deskhand.server.process import ServerConfig, run_until_signaled, serve_app
    from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer

    if not servers:
        raise ConfigError(
            "serve sandboxes: a desktop server is required, for example deskhand serve sandboxes http://127.0.0.1:8700 "
            "--tokens-file tokens.txt"
        )
    check_tls(tls_certificate, tls_key)
    tokens = parse_tokens(read_private_file(tokens_file), str(tokens_file))
    key = load_admin_key(None, os.environ)
    os.environ.pop(API_KEY_ENV, None)
    gateway = SandboxGatewayServer(
        [UpstreamServer(check_base_url(url, "URL of a desktop server"), key) for url in servers], tokens
    )

    async def main() -> None:
        settings = ServerConfig(host, port, certificate=tls_certificate, certificate_key=tls_key)
        async with serve_app(gateway.app(), settings) as (bound_port, ended):
            scheme = "https" if tls_certificate else "http"
            counts = f"{len(servers)} desktop servers, {len(tokens)} tokens"
            print(f"sandbox gateway at {scheme}://{host}:{bound_port}, {counts}", flush=True)
            try:
                await ended
            finally:
                await gateway.close()

    run_until_signaled(main, "its sandboxes are deleted")


def parse_tokens(text: str, file: str) -> dict[str, int | None]:
    """Return tokens with their quotas. Raises `ConfigError`, which names the line but no token."""
    from deskhand.server.api_keys import MIN_KEY_LENGTH

    tokens: dict[str, int | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or len(words[0]) < MIN_KEY_LENGTH or (len(words) == 2 and not words[1].isdecimal()):
            raise ConfigError(
                f"{file}:{number}: expected a token of at least {MIN_KEY_LENGTH} characters, "
                "optionally followed by a quota"
            )
        tokens[words[0]] = int(words[1]) if len(words) == 2 else None
    if not tokens:
        raise ConfigError(f"{file}: contains no token")
    return tokens
