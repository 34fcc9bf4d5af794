"""The panel and the icons on the desktop, of themes that have them: LXDE's panel, and the file manager that shows the
home's folder Desktop. Used by `DesktopSession`.

Both are ordinary guests: a desktop without them is as usable as a real one. Their windows are no windows of the user,
so `list_windows` leaves them out.
"""

from __future__ import annotations

import time

from deskhand.desktop.applications.catalog import get_profile
from deskhand.desktop.local import windows
from deskhand.desktop.local.jail import Jail
from deskhand.desktop.local.screen_reader import ScreenReader
from deskhand.desktop.local.x_connection import XConnection
from deskhand.errors import ConfigError, InfrastructureError

START_S = 30.0
_START = "setsid pcmanfm --desktop & setsid lxpanel &"
_WINDOWS = ("pcmanfm", "lxpanel")
_STILL_S, _POLL_S = 0.2, 0.02


def start_panel(jail: Jail, connection: XConnection, screen: ScreenReader) -> None:
    """Start both, and return once they are drawn: the screen is still while they wait for input.

    Raises `ConfigError` if one is not installed, `InfrastructureError` if they take longer than `START_S`.
    """
    for name in ("files", "panel"):
        if not get_profile(name).installed:
            raise ConfigError(f"theme panel: {name} is not installed; run as root: deskhand desktop install {name}")
    jail.launch(["sh", "-c", _START])
    deadline = time.monotonic() + START_S
    shown = [windows.wait_windows(connection, name, START_S, 1) for name in _WINDOWS]
    connection.panel_windows = frozenset(window.id for found in shown for window in found)
    last, still_since = screen.copy(), time.monotonic()
    while time.monotonic() < still_since + _STILL_S:
        if time.monotonic() > deadline:
            raise InfrastructureError(f"the panel was not drawn within {START_S:g} s")
        time.sleep(_POLL_S)
        pixels = screen.copy()
        if jail.busy() or (pixels != last).any():
            last, still_since = pixels, time.monotonic()
