"""One desktop between two resets: `DesktopSession`.

Invariant: `close` removes everything that the session started, including after a failed start.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog
import xcffib.xproto

from deskhand.desktop.applications import catalog
from deskhand.desktop.applications.profile import GUEST_PATH
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import (
    accessibility,
    egress_proxy,
    file_tree,
    guest_user,
    home_template,
    isolation,
    keymap,
    network_namespace,
    panel,
    precedence,
    processes,
    resource_monitor,
    theme,
    windows,
)
from deskhand.desktop.local.cgroup import Cgroup
from deskhand.desktop.local.framebuffer import Framebuffer
from deskhand.desktop.local.home import Home
from deskhand.desktop.local.isolation import IsolationLevel, ResourceLimits
from deskhand.desktop.local.jail import Jail
from deskhand.desktop.local.runtime_dir import GUEST_FILE, runtime
from deskhand.desktop.local.screen_reader import Capture, ScreenReader, is_mappable, open_screen_reader
from deskhand.desktop.local.x_connection import XConnection, x_errors
from deskhand.desktop.local.xserver import XServer
from deskhand.errors import ConfigError, FrameError, InfrastructureError

log = structlog.get_logger()
BUS_START_S = 10.0
SOCKET_BATCH = 16
X_EXIT_S = 0.2
_tmp_link_numbers = itertools.count(1)
HOST_DISK_MIB = 48
"""Disk for the screen, logs and command output, in addition to the guests' limit."""


class DesktopSession:
    """X server, jail and window manager for `spec`. Raises `ConfigError` or `InfrastructureError`.

    `capture` None selects the fastest working method.
    """

    def __init__(
        self,
        label: str,
        spec: DesktopSpec,
        isolation_level: IsolationLevel,
        limits: ResourceLimits,
        capture: Capture | None,
    ) -> None:
        self.spec = spec
        self._isolation_level: IsolationLevel = isolation_level
        self._theme = theme.get_theme(spec.name)
        owner = runtime()
        self.folder = owner.folder / f"{label}-{secrets.token_hex(6)}"
        self._user = guest_user.GuestUser.reserve()
        self._cgroup: Cgroup | None = None
        self._tmp_link: Path | None = None
        self._sockets: list[socket.socket] = []
        self._sockets_lock = threading.Lock()
        self._on_close: list[Callable[[], None]] = []
        self._live_screen: Framebuffer | None = None
        self._live_lock, self._is_watchable = threading.Lock(), True
        self._parts: list[XServer | Jail | XConnection | ScreenReader | egress_proxy.EgressProxy] = []
        labels = {processes.OWNER_LABEL: owner.token, processes.LEASE_LABEL: self.folder.name}
        try:
            self.folder.mkdir(mode=0o711 if guest_user.guest_uids() else 0o700)
            self._is_disk_limited = isolation.size_limited_folder(self.folder, limits.disk_mib + HOST_DISK_MIB)
            self._start(label, labels, limits, capture)
        except BaseException:
            self.close()
            raise

    def _start(self, label: str, labels: dict[str, str], limits: ResourceLimits, capture: Capture | None) -> None:
        self.x_server = self._start_x_server(labels, capture, limits.memory_mib)
        (self.folder / "display").write_text(str(self.x_server.number))
        (self.folder / GUEST_FILE).write_text(str(self._user.key))
        self._cgroup = Cgroup(f"{runtime().token}-{self.folder.name}", limits.memory_mib, limits.max_processes)
        base = runtime().folder
        home = home_template.template_folder(base / "templates", theme.home_files(self._theme), theme.HOME_FOLDERS)
        home_folder = home_template.make_home(home, self.folder, home_template.best_method(base)[0])
        self.connection = XConnection(self.x_server.name, self.x_server.cookie)
        self._parts.append(self.connection)
        with x_errors("preparing the screen"):
            self._paint_root()
        binds = [self.x_server.socket_path, self.x_server.authority]
        uid = self._user.uid
        if self._isolation_level == "plain":
            binds.append(self._write_wrappers())
        isolation.chown_to_guest(self.x_server.authority, uid)
        if self.spec.network and self._isolation_level != "namespaces":
            raise ConfigError("network destinations need isolation 'namespaces'; remove the spec's network")
        allowed = [egress_proxy.parse_destination(text) for text in self.spec.network]
        environment = self._environment() | labels
        guest = self._user, self._cgroup
        self.jail = Jail(self.folder, home_folder, environment, binds, self._isolation_level, *guest, limits)
        self._parts.append(self.jail)
        resource_monitor.monitor(self.jail, limits, checks_disk=not self._is_disk_limited)
        if allowed:
            (listener,) = network_namespace.open_sockets(self.jail.first_pid(), 1, uid, egress_proxy.PORT)
            self._parts.append(egress_proxy.EgressProxy(listener, allowed))
        self.home = Home(home_folder, self.jail.guest_home, uid)
        if self.spec.accessibility:
            self._start_bus()
        config_file = f"{self.jail.guest_home}/.config/openbox/rc.xml"
        self.manager = self._start_required(["openbox", "--config-file", config_file, "--sm-disable"], "openbox")
        for pid in (self.x_server.process.pid, self.manager):
            processes.raise_priority(pid)
        size = (self.spec.width, self.spec.height)
        self.screen = open_screen_reader(self.x_server, self.connection, *size, capture)
        self._parts.append(self.screen)
        with x_errors("starting the window manager"):
            windows.wait_window_manager(self.connection)
            if self._theme.panel:
                panel.start_panel(self.jail, self.connection, self.screen)

    def _start_required(self, argv: list[str], package: str) -> int:
        try:
            return self.jail.launch(argv, required=True)
        except ConfigError as error:
            raise ConfigError(f"{argv[0]}: not installed; apt-get install {package}") from error

    def _write_wrappers(self) -> Path:
        """Write wrappers for programs that need one at the plain level; return their directory."""
        folder = self.folder / "bin"
        folder.mkdir(mode=0o755)
        for profile in catalog.PROFILES.values():
            for name, script in profile.plain_wrappers.items() if profile.installed else ():
                (folder / name).write_text(script)
                (folder / name).chmod(0o755)
        return folder

    def _start_x_server(self, labels: dict[str, str], capture: Capture | None, memory_mib: int) -> XServer:
        """Start a server; with shared memory if requested, or if its framebuffer cannot be mapped."""
        width, height = self.spec.width, self.spec.height
        environment = {"PATH": "/usr/bin:/bin"} | labels
        base = runtime().folder
        found = keymap.components(base)
        start = functools.partial(XServer, self.folder, width, height, environment, memory_mib=memory_mib, keymap=found)
        server = start(shared_memory=capture == "shared")
        self._parts.append(server)
        if capture is None and not is_mappable(server, width, height):
            server.stop()
            server = self._parts[-1] = start(shared_memory=True)
        if found is None:
            keymap.prepare(base, server.name, server.authority)
        return server

    def _paint_root(self) -> None:
        core, root = self.connection.core, self.connection.root
        core.ChangeWindowAttributes(root, xcffib.xproto.CW.BackPixel, [int(self._theme.background, 16)])
        core.ClearArea(False, root, 0, 0, 0, 0)
        resources = theme.x_resources(self._theme).encode()
        self.connection.set_string(root, xcffib.xproto.Atom.RESOURCE_MANAGER, xcffib.xproto.Atom.STRING, resources)
        self.connection.sync()

    def _start_bus(self) -> None:
        """Start the session bus. Programs look it up at start, so it must exist before them."""
        uid = os.getuid() if self._user.uid is None else self._user.uid
        if self._isolation_level == "plain" and not guest_user.has_name(uid):
            raise ConfigError(
                "accessibility: the session bus needs a user with a name, or isolation 'namespaces'; "
                "disable the tree (accessibility=False, deskhand serve desktops --no-accessibility)"
            )
        address = f"--address=unix:path={self._bus_path()}"
        self._start_required(["dbus-daemon", "--session", "--nofork", "--nopidfile", address], "dbus")
        wait = ["sh", "-c", 'until [ -S "$0" ]; do sleep 0.01; done', self._bus_path()]
        if self.jail.run(wait, BUS_START_S).returncode != 0:
            raise InfrastructureError(f"the desktop's session bus did not start within {BUS_START_S:g} s")

    def _bus_path(self) -> str:
        return f"{isolation.guest_runtime_dir(self.folder, self._isolation_level)}/bus"

    def _environment(self) -> dict[str, str]:
        plain = self._isolation_level == "plain"
        bus = accessibility.environment(f"unix:path={self._bus_path()}")
        return {
            **catalog.environment(),
            **(bus if self.spec.accessibility else accessibility.DISABLED_ENVIRONMENT),
            "DISPLAY": self.x_server.name,
            "XAUTHORITY": str(self.x_server.authority),
            "PATH": f"{self.folder}/bin:{GUEST_PATH}" if plain else GUEST_PATH,
            "LANG": "C.UTF-8",
            "USER": "user",
            "LOGNAME": "user",
            "SHELL": "/bin/bash",
            "TZ": "UTC",
            "XCOMPOSEFILE": "/dev/null",
            "XDG_CURRENT_DESKTOP": "openbox",
            "XDG_SESSION_TYPE": "x11",
            "GDK_BACKEND": "x11",
            "GIO_USE_VFS": "local",
            "GIO_USE_VOLUME_MONITOR": "unix",
            "GSETTINGS_BACKEND": "keyfile",
            "GTK_OVERLAY_SCROLLING": "0",
            "GTK_IM_MODULE": "gtk-im-context-simple",
            **(egress_proxy.proxy_environment() if self.spec.network else {}),
            **(self._plain_tmp_variables() if plain else {}),
        }

    def socket_inside(self) -> socket.socket:
        """Return an unconnected TCP socket in the guests' network. Raises `ConfigError` at the plain level."""
        if self._isolation_level != "namespaces":
            raise ConfigError("guest ports are reachable only with isolation 'namespaces'")
        with self._sockets_lock:
            if not self._sockets:
                self._sockets = network_namespace.open_sockets(self.jail.first_pid(), SOCKET_BATCH, self._user.uid)
            return self._sockets.pop()

    def listen_inside(self, port: int, on_close: Callable[[], None]) -> socket.socket:
        """See `CanServeGuests`. Raises `ConfigError` at the plain level, where guests have no network."""
        if self._isolation_level != "namespaces":
            raise ConfigError("pages can be served to guests only with isolation 'namespaces'")
        (listener,) = network_namespace.open_sockets(self.jail.first_pid(), 1, self._user.uid, port)
        self._on_close.append(on_close)
        return listener

    def _plain_tmp_variables(self) -> dict[str, str]:
        """Use a short link for temporary files: a socket path has at most 107 bytes, of which LibreOffice needs 63."""
        isolation.close_shared_folders()
        self._tmp_link = runtime().folder / f"t{next(_tmp_link_numbers)}"
        self._tmp_link.symlink_to(self.folder / "tmp")
        return dict.fromkeys(("TMPDIR", "XDG_RUNTIME_DIR", "OSL_SOCKET_PATH"), str(self._tmp_link))

    def live_pixels(self, step: int) -> np.ndarray | None:
        """Return the screen for people who watch; see `HasLivePixels`. It has a mapping of its own, so that a reader
        in any thread never meets the one that the worker closes."""
        with self._live_lock:
            if self._live_screen is None and self._is_watchable:
                try:
                    size = (self.spec.width, self.spec.height)
                    self._live_screen = Framebuffer(self.x_server.framebuffer_path, *size)
                except (OSError, ValueError, FrameError):
                    self._is_watchable = False  # a server with shared memory has no such file
            return None if self._live_screen is None else self._live_screen.sample(step)

    def _close_live_screen(self) -> None:
        with self._live_lock:
            self._is_watchable = False
            live, self._live_screen = self._live_screen, None
            if live is not None:
                live.close()

    def processes(self) -> list[int]:
        """Return the host process ids of the X server and the jail."""
        return [self.x_server.process.pid, *self.jail.pids()]

    def failure(self) -> str | None:
        """Return why this desktop failed, or None."""
        if self.jail.has_failed():
            return self.jail.failure
        return None if self.x_server.is_running() else "its X server has exited"

    def failed_by_guests(self) -> bool:
        """Return whether there is evidence that guests caused the failure. May wait for it for a moment.

        Programs exit when their X server does, and may be noticed first: then the end of the server decides.
        """
        has_failed = self.jail.has_failed()
        if self.x_server.is_running() and not (has_failed and self.x_server.ends_within(X_EXIT_S)):
            return has_failed and self.jail.failed_by_guests
        return self.x_server.has_crashed()

    def is_disk_full_by(self, error: BaseException | None) -> bool:
        """Return whether an error says that the disk is full, and only this desktop's guests can have filled it."""
        while error is not None and not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            error = error.__cause__ or error.__context__
        return error is not None and self._is_disk_limited

    def busy(self) -> bool:
        """Return whether the X server or a guest runs or waits for the CPU."""
        return self.x_server.busy() or self.jail.busy()

    def _release_user(self) -> None:
        if self._user.close():
            self._user.kill()
        if survivors := self._user.close():
            log.error("desktop.survivors", user=self._user.key, pids=survivors[:20], folder=str(self.folder))

    def close(self) -> None:
        """Stop every process and remove the folder. Idempotent."""
        with self._sockets_lock:
            while self._sockets:
                self._sockets.pop().close()
        parts, self._parts = self._parts, []
        # All are called, in reverse order, even if one raises.
        with precedence.precedence_if_overloaded(), contextlib.ExitStack() as stack:
            stack.callback(file_tree.remove_tree, self.folder)
            stack.callback(isolation.unmount_below, self.folder)
            stack.callback(self._release_user)
            if self._cgroup is not None:
                stack.callback(self._cgroup.close)
            if self._tmp_link is not None:
                stack.callback(self._tmp_link.unlink, missing_ok=True)
            stack.callback(self._close_live_screen)
            for on_close in self._on_close:
                stack.callback(on_close)
            for part in parts:
                stack.callback(part.stop if isinstance(part, XServer) else part.close)
