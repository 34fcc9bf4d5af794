"""Provider that gives OSWorld's own `desktop_env.DesktopEnv` desktops of a desktop server.

    register_server_provider("http://127.0.0.1:8700", key)
    env = DesktopEnv(provider_name="docker", screen_size=(1280, 720))

Runs where `desktop-env` is installed, with the standard library only. It replaces one function of `desktop-env`, the
lookup of providers by name, and takes the name of an existing provider, because `DesktopEnv` accepts no others. Every
revert is a new lease. The key is stored in a private netrc file, where `requests` finds it; ports called without a
key (Chromium's debugger, VNC, VLC) are forwarded from this machine (`port_forwarding`).
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.desktop_env.port_forwarding import PortForwards, direct_connection, tunnel_connection

INNER_PORTS = (9222, 8006, 8080)
"""Guest ports of Chromium's debugger, VNC and VLC, in `DesktopEnv`'s order."""
NEAR = ("127.0.0.1", "localhost")
STARTED_CLEAN = "docker"
"""Provider name whose machines `DesktopEnv` considers unused after a start."""
TAKE_S = 300.0


class ServerVMManager:
    """Implements `VMManager`; a machine's path encodes its screen size."""

    def get_vm_path(
        self, os_type: str = "Ubuntu", region: str | None = None, screen_size: tuple[int, int] = (1920, 1080)
    ) -> str:
        if os_type != "Ubuntu":
            raise ConfigError(f"os_type {os_type!r}: the server's desktops are Linux; use os_type='Ubuntu'")
        return f"deskhand:{screen_size[0]}x{screen_size[1]}"

    def add_vm(self, *arguments: Any, **named: Any) -> None:
        """Nothing: the server keeps the leases."""

    delete_vm = occupy_vm = initialize_registry = check_and_clean = add_vm

    def list_free_vms(self, *arguments: Any, **named: Any) -> list[str]:
        return []


class LeaseServer:
    """HTTP client of a server that leases desktops, called `what` in messages. Raises `ConfigError` for a bad URL."""

    def __init__(self, address: str, key: str | None, what: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError(f"{what}: expected http://host:port or https://host:port without credentials")
        self.host, self.secure, self.what = parts.hostname, parts.scheme == "https", what
        self._port, self._root, self._key = parts.port, parts.path.rstrip("/"), key

    def send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], key: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body). Raises `OSError` and `http.client.HTTPException`."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        with contextlib.closing(kind(self.host, self._port, timeout=TAKE_S + 30)) as connection:
            shown = {"authorization": f"Bearer {key or self._key}"} if key or self._key else {}
            connection.request(method, self._root + path, body, headers | shown)
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None, request_id: str = ""
    ) -> tuple[int, dict[str, str], Any]:
        """Send JSON. Raises `InfrastructureError` without a reply."""
        headers = {"content-type": "application/json"} | ({"x-request-id": request_id} if request_id else {})
        try:
            status, told, data = self.send(
                method, path, json.dumps(body).encode() if body is not None else None, headers, None
            )
            return status, told, json.loads(data or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise InfrastructureError(
                f"{method} {path} of {self.what}: {type(error).__name__}; check that it is running"
            ) from error

    def check(self, request: str, status: int, said: Any) -> None:
        if status >= 300:
            raise InfrastructureError(f"{request} of {self.what}: {status} {str(said)[:4096]}")

    def end(self, path: str) -> None:
        """Release a desktop; if that fails, it expires."""
        with contextlib.suppress(InfrastructureError):
            self.ask("DELETE", path, None)


class LeaseProvider:
    """Implements `Provider`: each start leases a desktop, each stop and revert releases it."""

    def __init__(self, server: LeaseServer) -> None:
        self._server = server
        self._ports: list[int] = []
        self._held = contextlib.ExitStack()

    def _take(self, width: int, height: int, held: contextlib.ExitStack) -> list[int]:
        """Lease a desktop and return the local ports of its server, Chromium, VNC and VLC.

        Closing `held` releases the desktop. Raises `InfrastructureError`.
        """
        raise NotImplementedError

    def start_emulator(self, path_to_vm: str, headless: bool = True, os_type: str = "Ubuntu") -> None:
        """Lease a desktop, unless there is one. Raises `InfrastructureError`."""
        if self._ports:
            return
        width, height = map(int, path_to_vm.removeprefix("deskhand:").split("x"))
        with contextlib.ExitStack() as held:
            self._ports = self._take(width, height, held)
            self._held = held.pop_all()
        atexit.register(self.stop_emulator)

    def get_ip_address(self, path_to_vm: str) -> str:
        """`host:server:chromium:vnc:vlc`."""
        if not self._ports:
            raise InfrastructureError("no desktop; call start_emulator first")
        return ":".join(["127.0.0.1", *map(str, self._ports)])

    def save_state(self, path_to_vm: str, snapshot_name: str) -> None:
        raise NotImplementedError("snapshots are not supported; every desktop starts in its initial state")

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        """Release the desktop; the next start leases a new one."""
        self.stop_emulator(path_to_vm)
        return path_to_vm

    def stop_emulator(self, path_to_vm: str = "", *arguments: Any) -> None:
        """Release the desktop. Idempotent."""
        self._ports = []
        atexit.unregister(self.stop_emulator)
        self._held.close()


class ServerProvider(LeaseProvider):
    """Desktops of a desktop server."""

    def __init__(self, address: str, key: str | None) -> None:
        super().__init__(LeaseServer(address, key, "the desktop server"))

    def _take(self, width: int, height: int, held: contextlib.ExitStack) -> list[int]:
        """Forwarded are the guest's ports, and the server where it is elsewhere or speaks TLS."""
        status, _, lease = self._server.ask(
            "POST", "/leases", {"spec": {"width": width, "height": height}, "wait_s": TAKE_S}
        )
        self._server.check("POST /leases", status, lease)
        held.callback(self._server.end, f"/leases/{lease['lease']}")
        host, secure = self._server.host, self._server.secure
        ways = [
            tunnel_connection(host, lease["tunnels"], secure, f"{lease['lease']}:{port}", lease["key"])
            for port in INNER_PORTS
        ]
        near = host in NEAR and not secure
        forwards = PortForwards(ways if near else [direct_connection(host, lease["port"], secure), *ways])
        held.callback(forwards.close)
        return [lease["port"], *forwards.ports] if near else forwards.ports


def register_server_provider(address: str, key: str | None = None, *, name: str = STARTED_CLEAN) -> None:
    """Let `DesktopEnv(provider_name=name)` use the server at `address`. Raises `ConfigError` for an invalid URL."""
    ServerProvider(address, key)
    if key:
        _let_requests_know("127.0.0.1", key)
    replace_provider(name, lambda: ServerProvider(address, key))


def replace_provider(name: str, make: Callable[[], LeaseProvider]) -> None:
    """Let `DesktopEnv(provider_name=name)` use the provider that `make` returns."""
    environment: Any = importlib.import_module("desktop_env.desktop_env")
    original = environment.create_vm_manager_and_provider

    def create(provider_name: str, region: str | None, use_proxy: bool = False) -> Any:
        return (
            (ServerVMManager(), make())
            if provider_name == name
            else original(provider_name, region, use_proxy=use_proxy)
        )

    environment.create_vm_manager_and_provider = create


def _let_requests_know(host: str, key: str) -> None:
    """A netrc file of this process: ours, then what its netrc file said before."""
    folder = Path(tempfile.mkdtemp(prefix="deskhand-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    before = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    rest = before.read_text() if before.is_file() else ""
    descriptor = os.open(folder / "netrc", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        quoted = key.replace("\\", "\\\\").replace('"', '\\"')
        file.write(f'machine {host}\nlogin deskhand\npassword "{quoted}"\n{rest}')
    os.environ["NETRC"] = str(folder / "netrc")
