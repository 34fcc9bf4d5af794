"""The life of one desktop between two resets. Invariant: everything that it started is gone after `close`, also when the start
failed.
"""

from __future__ import annotations

import shutil
import time

import xcffib.xproto

from deskhand.desktop.base import Template
from deskhand.desktop.embedded import processes, theme, windows
from deskhand.desktop.embedded.box import Box, Isolation
from deskhand.desktop.embedded.connection import Connection, x_errors
from deskhand.desktop.embedded.framebuffer import Framebuffer
from deskhand.desktop.embedded.home import Home
from deskhand.desktop.embedded.runtime import runtime
from deskhand.desktop.embedded.xserver import XServer
from deskhand.errors import ConfigError


class Session:
    """Builds an X server, a box and a window manager for `template`. Raises `ConfigError` or `InfrastructureError`."""

    def __init__(self, label: str, template: Template, isolation: Isolation) -> None:
        self.template = template
        self.look = theme.theme(template.name)
        owner = runtime()
        self.folder = owner.folder / f"{label}-{time.monotonic_ns():x}"
        self.folder.mkdir(mode=0o700)
        self._parts: list[XServer | Box | Connection | Framebuffer] = []
        try:
            self._start(label, owner.token, isolation)
        except BaseException:
            self.close()
            raise

    def _start(self, label: str, token: str, isolation: Isolation) -> None:
        labels = {processes.OWNER_LABEL: token, processes.LEASE_LABEL: label}
        self.x_server = XServer(self.folder, self.template.width, self.template.height, {"PATH": "/usr/bin:/bin"} | labels)
        self._parts.append(self.x_server)
        (self.folder / "display").write_text(str(self.x_server.number))
        home_folder = self.folder / "home"
        home_folder.mkdir(mode=0o700)
        for name in theme.home_folders():
            (home_folder / name).mkdir()
        for name, text in theme.home_files(self.look).items():
            path = home_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.connection = Connection(self.x_server.name, self.x_server.cookie)
        self._parts.append(self.connection)
        with x_errors("preparing the screen"):
            self._paint_root()
        binds = [self.x_server.socket_path, self.x_server.authority]
        self.box = Box(self.folder, home_folder, label, token, self._environment(), binds, isolation)
        self._parts.append(self.box)
        self.home = Home(home_folder, self.box.guest_home)
        try:
            manager = self.box.launch(["openbox", "--config-file", f"{self.box.guest_home}/.config/openbox/rc.xml", "--sm-disable"])
        except ConfigError as error:
            raise ConfigError("openbox is not installed; apt-get install openbox") from error
        for pid in (self.x_server.process.pid, manager):
            processes.prefer(pid)
        self.framebuffer = Framebuffer(self.x_server.framebuffer_path, self.template.width, self.template.height)
        self._parts.append(self.framebuffer)
        with x_errors("starting the window manager"):
            windows.wait_window_manager(self.connection)

    def _paint_root(self) -> None:
        core, root = self.connection.core, self.connection.root
        core.ChangeWindowAttributes(root, xcffib.xproto.CW.BackPixel, [int(self.look.background, 16)])
        core.ClearArea(False, root, 0, 0, 0, 0)
        resources = theme.x_resources(self.look).encode()
        self.connection.set_string(root, xcffib.xproto.Atom.RESOURCE_MANAGER, xcffib.xproto.Atom.STRING, resources)
        self.connection.sync()

    def _environment(self) -> dict[str, str]:
        return {
            "DISPLAY": self.x_server.name,
            "XAUTHORITY": str(self.x_server.authority),
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games",
            "LANG": "C.UTF-8",
            "USER": "user",
            "LOGNAME": "user",
            "SHELL": "/bin/bash",
            "TZ": "UTC",
            "XCOMPOSEFILE": "/dev/null",
            "XDG_RUNTIME_DIR": "/run/user",
            "XDG_CURRENT_DESKTOP": "openbox",
            "XDG_SESSION_TYPE": "x11",
            "GDK_BACKEND": "x11",
            "NO_AT_BRIDGE": "1",
            "GTK_A11Y": "none",
            "GIO_USE_VFS": "local",
            "GIO_USE_VOLUME_MONITOR": "unix",
            "GSETTINGS_BACKEND": "keyfile",
            "DBUS_SESSION_BUS_ADDRESS": "disabled:",
            "GTK_OVERLAY_SCROLLING": "0",
            "GTK_IM_MODULE": "gtk-im-context-simple",
        }

    def processes(self) -> list[int]:
        """Host process ids of the X server and everything in the box."""
        return [self.x_server.process.pid, *self.box.pids()]

    def busy(self) -> bool:
        """Whether the X server or a guest runs or waits for a processor."""
        return self.x_server.busy() or self.box.busy()

    def close(self) -> None:
        """End everything and remove the folder. Idempotent."""
        for part in reversed(self._parts):
            part.stop() if isinstance(part, XServer) else part.close()
        self._parts.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
