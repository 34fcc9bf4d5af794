"""OSWorld's own `desktop_env.DesktopEnv` on a bridge's desktops. Invariant: one function of `desktop-env` is replaced, the one that
finds a provider by its name; controllers, set-up and evaluation are its own, unchanged.

It runs where `desktop-env` is installed, on Python's standard library alone:

    register("http://127.0.0.1:8700", key)
    env = DesktopEnv(provider_name="docker", screen_size=(1280, 720))

`DesktopEnv` takes only the names of its own providers, so this one goes by one of them. Every revert is a new lease, a desktop that
nobody has used. The key goes into a private netrc file, where `requests` finds it for the bridge's host; it stands in no address.
The ports of the browser's debugger, VNC and VLC, which are called without a key, are ports of this machine (`forwarding.py`).
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.desktop_env.port_forwarding import PortForwards, direct_connection, tunnel_connection

INNER_PORTS = (9222, 8006, 8080)
"""Of Chromium's debugger, VNC and VLC in the guest, in the order in which `DesktopEnv` is told of them."""
NEAR = ("127.0.0.1", "localhost")
STARTED_CLEAN = "docker"
"""The name whose machines `DesktopEnv` takes for unused when they start."""
TAKE_S = 300.0


class ServerVMManager:
    """What `DesktopEnv` asks of a `VMManager`; a machine's path is the size of its screen."""

    def get_vm_path(
        self, os_type: str = "Ubuntu", region: str | None = None, screen_size: tuple[int, int] = (1920, 1080)
    ) -> str:
        if os_type != "Ubuntu":
            raise ConfigError(f"os_type {os_type!r}: the bridge's desktops are Linux; use os_type='Ubuntu'")
        return f"deskhand:{screen_size[0]}x{screen_size[1]}"

    def add_vm(self, *arguments: Any, **named: Any) -> None:
        """Nothing: the bridge keeps the leases."""

    delete_vm = occupy_vm = initialize_registry = check_and_clean = add_vm

    def list_free_vms(self, *arguments: Any, **named: Any) -> list[str]:
        return []


class ServerProvider:
    """What `DesktopEnv` asks of a `Provider`: each start is a lease of the bridge at `address`."""

    def __init__(self, address: str, key: str | None) -> None:
        self._address = address.rstrip("/")
        self._key = key
        self._lease: dict[str, Any] | None = None
        self._forwards: PortForwards | None = None

    def start_emulator(self, path_to_vm: str, headless: bool = True, os_type: str = "Ubuntu") -> None:
        """Take a lease, unless there is one. Raises `InfrastructureError`."""
        if self._lease is None:
            width, height = map(int, path_to_vm.removeprefix("deskhand:").split("x"))
            self._lease = self._ask(
                "POST", "/leases", {"template": {"width": width, "height": height}, "wait_s": TAKE_S}
            )
            atexit.register(self.stop_emulator)
            self._forward(self._lease)

    def _forward(self, lease: dict[str, Any]) -> None:
        """Ports of this machine for those of the guest, and for the server where it is elsewhere or speaks TLS."""
        parts = urlsplit(self._address)
        host, secure = parts.hostname or "", parts.scheme == "https"
        ways = [
            tunnel_connection(host, lease["tunnels"], secure, f"{lease['lease']}:{port}", lease["key"])
            for port in INNER_PORTS
        ]
        if host not in NEAR or secure:
            ways.insert(0, direct_connection(host, lease["port"], secure))
        self._forwards = PortForwards(ways)

    def get_ip_address(self, path_to_vm: str) -> str:
        """`host:server:chromium:vnc:vlc`."""
        if self._lease is None or self._forwards is None:
            raise InfrastructureError("the desktop has no lease; start_emulator comes first")
        ports = list(self._forwards.ports)
        if len(ports) == len(INNER_PORTS):
            ports.insert(0, self._lease["port"])
        return ":".join(["127.0.0.1", *map(str, ports)])

    def save_state(self, path_to_vm: str, snapshot_name: str) -> None:
        raise NotImplementedError("the bridge keeps no snapshots; every lease begins in the state of its template")

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        """Give the lease back; the next start takes a new one."""
        self.stop_emulator(path_to_vm)
        return path_to_vm

    def stop_emulator(self, path_to_vm: str = "", *arguments: Any) -> None:
        """Give the lease back. Idempotent; a bridge that is gone has ended it."""
        lease, self._lease = self._lease, None
        forwards, self._forwards = self._forwards, None
        if forwards is not None:
            forwards.close()
        atexit.unregister(self.stop_emulator)
        if lease is not None:
            try:
                self._ask("DELETE", f"/leases/{lease['lease']}", None)
            except InfrastructureError:
                return

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self._key}"} if self._key else {})
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TAKE_S + 30) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            message = error.read(4096).decode(errors="replace")
            raise InfrastructureError(f"{method} {self._address}{path}: {error.code} {message}") from None
        except (OSError, ValueError) as error:
            raise InfrastructureError(f"{method} {self._address}{path}: {error}; does the bridge run?") from None


def register_server_provider(address: str, key: str | None = None, *, name: str = STARTED_CLEAN) -> None:
    """Let `DesktopEnv(provider_name=name)` use the bridge at `address`. Raises `ConfigError` for an address that is none."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ConfigError("the bridge's address must be http://host:port or https://host:port, without a key in it")
    if key:
        _let_requests_know("127.0.0.1", key)
    replace_provider(name, lambda: (ServerVMManager(), ServerProvider(address, key)))


def replace_provider(name: str, make: Callable[[], tuple[Any, Any]]) -> None:
    """Let `DesktopEnv(provider_name=name)` use the manager and the provider that `make` gives."""
    environment: Any = importlib.import_module("desktop_env.desktop_env")
    original = environment.create_vm_manager_and_provider

    def create(provider_name: str, region: str | None, use_proxy: bool = False) -> Any:
        return make() if provider_name == name else original(provider_name, region, use_proxy=use_proxy)

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
