"""Managed windows as the X server tells them. Invariant: nothing here asks a guest program; every box is in screen pixels."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import xcffib.xproto
from xcffib.xproto import Atom, WindowClass

from deskhand.desktop.base import Window
from deskhand.desktop.local.x_connection import XConnection
from deskhand.errors import InfrastructureError

_NORTH_WEST = 1
_FROM_PAGER = 2
_POLL_S = 0.02
_UNMOVED_S = 0.4


def list_windows(connection: XConnection) -> list[Window]:
    """`_NET_CLIENT_LIST`, oldest first; a window that goes away while it is asked about is left out."""
    identities = _cardinals(connection, connection.root, "_NET_CLIENT_LIST")
    windows = []
    for identity in identities:
        try:
            windows.append(_describe(connection, identity))
        except xcffib.Error:
            continue
    return windows


def _cardinals(connection: XConnection, window: int, name: str) -> list[int]:
    data = connection.core.GetProperty(False, window, connection.atoms[name], Atom.Any, 0, 1024).reply()
    return list(struct.unpack(f"<{data.value_len}I", data.value.buf())) if data.format == 32 else []


def _describe(connection: XConnection, identity: int) -> Window:
    core, atoms = connection.core, connection.atoms
    geometry = core.GetGeometry(identity)
    position = core.TranslateCoordinates(identity, connection.root, 0, 0)
    named = (atoms["_NET_WM_NAME"], Atom.WM_NAME, Atom.WM_CLASS)
    names = [core.GetProperty(False, identity, atom, Atom.Any, 0, 256) for atom in named]
    extents = core.GetProperty(False, identity, atoms["_NET_FRAME_EXTENTS"], Atom.Any, 0, 4)
    box, origin = geometry.reply(), position.reply()
    title, old_title, wm_class = (bytes(reply.reply().value.buf()).decode(errors="replace") for reply in names)
    frame = extents.reply()
    left, _, top, _ = (
        struct.unpack("<4I", frame.value.buf()) if (frame.format, frame.value_len) == (32, 4) else (0, 0, 0, 0)
    )
    return Window(
        id=identity,
        title=title or old_title,
        wm_class=wm_class.rstrip("\0").replace("\0", "."),
        x=origin.dst_x,
        y=origin.dst_y,
        width=box.width,
        height=box.height,
        frame_top=top,
        frame_left=left,
    )


def matching_windows(windows: list[Window], match: str) -> list[Window]:
    """Windows with `match` as a case-insensitive substring of class or title."""
    wanted = match.lower()
    return [window for window in windows if wanted in window.wm_class.lower() or wanted in window.title.lower()]


def wait_windows(
    connection: XConnection, match: str, timeout_s: float, count: int, check: Callable[[], None] = lambda: None
) -> list[Window]:
    """Raises `InfrastructureError` when fewer than `count` windows match within `timeout_s`, and what `check` raises meanwhile."""
    deadline = time.monotonic() + timeout_s
    while True:
        windows = list_windows(connection)
        found = matching_windows(windows, match)
        if len(found) >= count:
            return found
        check()
        if time.monotonic() > deadline:
            seen = ", ".join(f"{window.wm_class} '{window.title}'" for window in windows) or "none"
            raise InfrastructureError(f"no {count} window(s) '{match}' within {timeout_s:g} s; windows: {seen}")
        connection.wait_for_root_property("_NET_CLIENT_LIST", _POLL_S if windows else 4 * _POLL_S)


def place(
    connection: XConnection,
    window: Window,
    x: int,
    y: int,
    width: int | None,
    height: int | None,
    timeout_s: float = 2.0,
) -> Window:
    """Ask the window manager; returns the window once it is there, or as it is when it stays otherwise (a minimum size)."""
    width, height = width or window.width, height or window.height
    atoms = connection.atoms
    maximised = [0, atoms["_NET_WM_STATE_MAXIMIZED_VERT"], atoms["_NET_WM_STATE_MAXIMIZED_HORZ"], _FROM_PAGER, 0]
    connection.send_root_message(window.id, "_NET_WM_STATE", maximised)
    deadline = time.monotonic() + timeout_s
    asked: tuple[int, int] | None = None
    last, same_since = None, 0.0
    while True:
        try:
            current = _describe(connection, window.id)
        except xcffib.Error as error:
            raise InfrastructureError(f"window '{window.title}' went away while it was placed") from error
        now = time.monotonic()
        if (current.x, current.y, current.width, current.height) == (x, y, width, height):
            return current
        corner = (x - current.frame_left, y - current.frame_top)
        if corner != asked:  # with static gravity, which needs no frame, openbox's next drag would jump by the frame
            flags = _NORTH_WEST | 0xF << 8 | _FROM_PAGER << 12
            connection.send_root_message(window.id, "_NET_MOVERESIZE_WINDOW", [flags, *corner, width, height])
            asked, last = corner, None
        if current != last:
            last, same_since = current, now
        if now > deadline or now - same_since > _UNMOVED_S:
            return current
        time.sleep(_POLL_S / 4)


def activate(connection: XConnection, window: Window) -> None:
    """Ask the window manager to bring it to the front, out of its icon if need be, with the keyboard."""
    connection.send_root_message(window.id, "_NET_ACTIVE_WINDOW", [_FROM_PAGER, 0, 0, 0, 0])


def close(connection: XConnection, window: Window) -> None:
    """Ask the window manager to close it as its own button does."""
    connection.send_root_message(window.id, "_NET_CLOSE_WINDOW", [0, _FROM_PAGER, 0, 0, 0])


def wait_window_manager(connection: XConnection, timeout_s: float = 20.0) -> None:
    """Until the window manager really manages: it says so before it listens, so a window of ours is shown until it is taken up."""
    deadline = time.monotonic() + timeout_s
    core = connection.core
    while not _cardinals(connection, connection.root, "_NET_SUPPORTING_WM_CHECK"):
        _give_up_after(deadline, timeout_s)
        connection.wait_for_root_property("_NET_SUPPORTING_WM_CHECK", 0.2)
    probe = connection.x.generate_id()
    core.CreateWindow(0, probe, connection.root, 0, 0, 8, 8, 0, WindowClass.InputOutput, 0, 0, [])
    while not _managed(connection, probe):
        _give_up_after(deadline, timeout_s)
        core.UnmapWindow(probe)
        core.MapWindow(probe)
        connection.wait_for_root_property("_NET_CLIENT_LIST", 0.04)
    core.DestroyWindow(probe)
    while _managed(connection, probe):
        _give_up_after(deadline, timeout_s)
        connection.wait_for_root_property("_NET_CLIENT_LIST", 0.04)


def _managed(connection: XConnection, window: int) -> bool:
    return window in _cardinals(connection, connection.root, "_NET_CLIENT_LIST")


def _give_up_after(deadline: float, timeout_s: float) -> None:
    if time.monotonic() > deadline:
        raise InfrastructureError(f"the window manager did not answer within {timeout_s:g} s; is openbox installed?")
