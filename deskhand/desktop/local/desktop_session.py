"""The life of one desktop between two resets. Invariant: everything that it started is gone after `close`, also when the start
failed.
"""

from __future__ import annotations

import itertools
import shutil
import socket
import threading
import time
from pathlib import Path

import xcffib.xproto

from deskhand.desktop.applications import catalog
from deskhand.desktop.applications.profile import GUEST_PATH
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import (
    accessibility,
    egress_proxy,
    home_template,
    network_namespace,
    processes,
    resource_monitor,
    theme,
    windows,
)
from deskhand.desktop.local import (
    isolation as isolation_module,
)
from deskhand.desktop.local.home import Home
from deskhand.desktop.local.isolation import Isolation, ResourceLimits
from deskhand.desktop.local.jail import Jail
from deskhand.desktop.local.runtime_dir import runtime
from deskhand.desktop.local.screen_reader import Capture, ScreenReader, can_be_mapped, open_screen_reader
from deskhand.desktop.local.x_connection import XConnection, x_errors
from deskhand.desktop.local.xserver import XServer
from deskhand.errors import ConfigError, InfrastructureError

BUS_START_S = 10.0
SOCKETS_AT_A_TIME = 16
_link_numbers = itertools.count(1)
OWN_DISK_MIB = 48
"""For the screen, the logs and the output of commands, beside what the guests may have."""


class DesktopSession:
    """Builds an X server, a box and a window manager for `template`. Raises `ConfigError` or `InfrastructureError`.

    `capture` None takes the quickest way to the pixels that works.
    """

    def __init__(
        self,
        label: str,
        template: DesktopSpec,
        isolation: Isolation,
        limits: ResourceLimits | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.template = template
        self.look = theme.theme(template.name)
        owner = runtime()
        self.folder = owner.folder / f"{label}-{time.monotonic_ns():x}"
        self._user = isolation_module.GuestUser()
        self.folder.mkdir(mode=0o711 if isolation_module.guest_uids() else 0o700)
        limits = limits or ResourceLimits()
        self._disk_is_bounded = isolation_module.size_limited_folder(self.folder, limits.disk_mib + OWN_DISK_MIB)
        self._link: Path | None = None
        self._sockets: list[socket.socket] = []
        self._sockets_lock = threading.Lock()
        self._parts: list[XServer | Jail | XConnection | ScreenReader | egress_proxy.EgressProxy] = []
        try:
            self._start(label, owner.token, isolation, limits, capture)
        except BaseException:
            self.close()
            raise

    def _start(
        self, label: str, token: str, isolation: Isolation, limits: ResourceLimits, capture: Capture | None
    ) -> None:
        labels = {processes.OWNER_LABEL: token, processes.LEASE_LABEL: label}
        self.x_server = self._start_x_server(labels, capture)
        (self.folder / "display").write_text(str(self.x_server.number))
        files = catalog.home_files() | theme.home_files(self.look)
        template = home_template.template_folder(runtime().folder / "templates", files, theme.home_folders())
        home_folder = home_template.make_home(template, self.folder, home_template.best_method(runtime().folder)[0])
        self.connection = XConnection(self.x_server.name, self.x_server.cookie)
        self._parts.append(self.connection)
        with x_errors("preparing the screen"):
            self._paint_root()
        binds = [self.x_server.socket_path, self.x_server.authority]
        uid = self._user.uid
        if isolation == "plain":
            binds.append(self._write_stand_ins())
        isolation_module.chown_to_guest(self.x_server.authority, uid)
        if self.template.network and isolation != "namespaces":
            raise ConfigError(
                "destinations in the network need isolation 'namespaces'; leave the template's network empty"
            )
        allowed = [egress_proxy.parse_destination(text) for text in self.template.network]
        self.box = Jail(
            self.folder, home_folder, label, token, self._environment(isolation), binds, isolation, uid, limits
        )
        self._parts.append(self.box)
        resource_monitor.monitor(self.box, limits, disk=not self._disk_is_bounded)
        if allowed:
            self._parts.append(
                egress_proxy.EgressProxy(
                    network_namespace.listener(self.box.first_pid(), egress_proxy.PORT, uid), allowed
                )
            )
        self.home = Home(home_folder, self.box.guest_home, uid)
        if self.template.accessibility:
            self._start_bus(isolation)
        try:
            self.manager = self.box.launch(
                ["openbox", "--config-file", f"{self.box.guest_home}/.config/openbox/rc.xml", "--sm-disable"],
                needed=True,
            )
        except ConfigError as error:
            raise ConfigError("openbox is not installed; apt-get install openbox") from error
        for pid in (self.x_server.process.pid, self.manager):
            processes.prefer(pid)
        self.screen = open_screen_reader(
            self.x_server, self.connection, self.template.width, self.template.height, capture
        )
        self._parts.append(self.screen)
        with x_errors("starting the window manager"):
            windows.wait_window_manager(self.connection)

    def _write_stand_ins(self) -> Path:
        """The folder with programs that stand in for those that do not start as they are at the plain level."""
        folder = self.folder / "bin"
        folder.mkdir(mode=0o755)
        for profile in catalog.PROFILES.values():
            for name, script in profile.plain.items() if profile.installed else ():
                (folder / name).write_text(script)
                (folder / name).chmod(0o755)
        return folder

    def _start_x_server(self, labels: dict[str, str], capture: Capture | None) -> XServer:
        """One that shares memory when that is asked for, or when its own cannot be mapped."""
        width, height = self.template.width, self.template.height
        environment = {"PATH": "/usr/bin:/bin"} | labels
        server = XServer(self.folder, width, height, environment, shared_memory=capture == "shared")
        self._parts.append(server)
        if capture is None and not can_be_mapped(server, width, height):
            server.stop()
            server = self._parts[-1] = XServer(self.folder, width, height, environment, shared_memory=True)
        return server

    def _paint_root(self) -> None:
        core, root = self.connection.core, self.connection.root
        core.ChangeWindowAttributes(root, xcffib.xproto.CW.BackPixel, [int(self.look.background, 16)])
        core.ClearArea(False, root, 0, 0, 0, 0)
        resources = theme.x_resources(self.look).encode()
        self.connection.set_string(root, xcffib.xproto.Atom.RESOURCE_MANAGER, xcffib.xproto.Atom.STRING, resources)
        self.connection.sync()

    def _start_bus(self, isolation: Isolation) -> None:
        """Programs look for it when they start, so it has to be there before them."""
        if isolation == "plain" and not isolation_module.has_name(self._user.uid):
            raise ConfigError(
                "the bus of the accessibility tree serves no user without a name: it needs isolation 'namespaces'; "
                "or leave the tree out (accessibility=False in the template, deskhand serve --no-accessibility)"
            )
        place = f"{isolation_module.runtime_folder(self.folder, isolation)}/bus"
        try:
            self.box.launch(
                ["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address=unix:path={place}"], needed=True
            )
        except ConfigError as error:
            raise ConfigError("dbus-daemon is not installed; apt-get install dbus") from error
        there = self.box.run(["sh", "-c", 'until [ -S "$0" ]; do sleep 0.01; done', place], BUS_START_S)
        if there.returncode != 0:
            raise InfrastructureError(f"the desktop's session bus did not start within {BUS_START_S:g} s")

    def _environment(self, isolation: Isolation) -> dict[str, str]:
        telling = self.template.accessibility
        plain = isolation == "plain"
        bus = f"unix:path={isolation_module.runtime_folder(self.folder, isolation)}/bus"
        told = accessibility.environment(bus) if telling else accessibility.SILENT
        return (
            catalog.environment()
            | told
            | {
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
                **(egress_proxy.proxy_environment() if self.template.network else {}),
                **(self._plain_places() if plain else {}),
            }
        )

    def socket_inside(self) -> socket.socket:
        """A TCP socket of the guests' network, not connected. Raises `ConfigError` at the plain level, where they have none."""
        if self.box.isolation != "namespaces":
            raise ConfigError(
                "guests can be called at their ports only with isolation 'namespaces': otherwise they have no network"
            )
        with self._sockets_lock:
            if not self._sockets:
                self._sockets = network_namespace.sockets(self.box.first_pid(), SOCKETS_AT_A_TIME, self._user.uid)
            return self._sockets.pop()

    def _plain_places(self) -> dict[str, str]:
        """Where guests of the plain level have their temporary files, by a short name: that of a socket may have 107 bytes, and
        LibreOffice's own part of it has 63.
        """
        isolation_module.shared_folders_are_closed()
        self._link = runtime().folder / f"t{next(_link_numbers)}"
        self._link.symlink_to(self.folder / "tmp")
        return dict.fromkeys(("TMPDIR", "XDG_RUNTIME_DIR", "OSL_SOCKET_PATH"), str(self._link))

    def processes(self) -> list[int]:
        """Host process ids of the X server and everything in the box."""
        return [self.x_server.process.pid, *self.box.pids()]

    def failure(self) -> str | None:
        """Why this desktop is no longer what it was, or None."""
        return self.box.failure or (None if self.x_server.alive() else "its X server has ended")

    def busy(self) -> bool:
        """Whether the X server or a guest runs or waits for a processor."""
        return self.x_server.busy() or self.box.busy()

    def close(self) -> None:
        """End everything and remove the folder. Idempotent."""
        with self._sockets_lock:
            while self._sockets:
                self._sockets.pop().close()
        for part in reversed(self._parts):
            part.stop() if isinstance(part, XServer) else part.close()
        self._parts.clear()
        if self._link is not None:
            self._link.unlink(missing_ok=True)
        self._user.close()
        isolation_module.unbound_folders(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
