"""Managed windows: list, wait, place, activate, close, and wait until they or the manager have read their input.

Boxes are in screen pixels. They come from the X server and the window manager; what guest programs reply affects only
how long the host waits.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import xcffib.xproto
from xcffib.xproto import CW, Atom, EventMask, WindowClass

from deskhand.desktop.base import Window
from deskhand.desktop.local.x_connection import XConnection
from deskhand.errors import InfrastructureError

_NORTH_WEST = 1
_FROM_PAGER = 2
_TITLE_POLL_S = 0.08
"""A new window changes the list of windows, which is an event. Only one that is listed before it has its class or title
is found later."""
PLACE_TIMEOUT_S, PROGRAM_TIMEOUT_S = 10.0, 2.0
_ACTIVATE_TIMEOUT_S, _START_TIMEOUT_S = 1.0, 20.0
_RECHECK_S = 0.5
_ping_tokens = itertools.count(1)


def list_windows(connection: XConnection) -> list[Window]:
    """Return `_NET_CLIENT_LIST` without the panel's windows, oldest first. Windows that close meanwhile are skipped.

    A guest may list a thousand windows that do not exist: one round trip finds them all. Another describes the rest, as
    a guest may make each slow.
    """
    listed = _cardinals(connection, connection.root, "_NET_CLIENT_LIST")
    identities = [identity for identity in listed if identity not in connection.panel_windows]
    geometries = [connection.core.GetGeometry(identity) for identity in identities]
    found = []
    for identity, geometry in zip(identities, geometries, strict=True):
        with suppress(xcffib.Error):
            geometry.reply()
            found.append(identity)
    windows = []
    for read_description in [_request_description(connection, identity) for identity in found]:
        with suppress(xcffib.Error):
            windows.append(read_description())
    return windows


def _cardinals(connection: XConnection, window: int, name: str) -> list[int]:
    data = connection.core.GetProperty(False, window, connection.atoms[name], Atom.Any, 0, 1024).reply()
    return list(struct.unpack(f"<{data.value_len}I", data.value.buf())) if data.format == 32 else []


def _describe(connection: XConnection, identity: int) -> Window:
    return _request_description(connection, identity)()


def _request_description(connection: XConnection, identity: int) -> Callable[[], Window]:
    """Send the requests about a window; return the function that waits for their replies."""
    core, atoms = connection.core, connection.atoms
    geometry = core.GetGeometry(identity)
    position = core.TranslateCoordinates(identity, connection.root, 0, 0)
    named = (atoms["_NET_WM_NAME"], Atom.WM_NAME, Atom.WM_CLASS)
    names = [core.GetProperty(False, identity, atom, Atom.Any, 0, 256) for atom in named]
    extents = core.GetProperty(False, identity, atoms["_NET_FRAME_EXTENTS"], Atom.Any, 0, 4)

    def read_replies() -> Window:
        size, origin = geometry.reply(), position.reply()
        title, old_title, wm_class = (bytes(reply.reply().value.buf()).decode(errors="replace") for reply in names)
        frame = extents.reply()
        is_valid = (frame.format, frame.value_len) == (32, 4)
        left, _, top, _ = struct.unpack("<4I", frame.value.buf()) if is_valid else (0, 0, 0, 0)
        return Window(
            id=identity,
            title=title or old_title,
            wm_class=wm_class.rstrip("\0").replace("\0", "."),
            x=origin.dst_x,
            y=origin.dst_y,
            width=size.width,
            height=size.height,
            frame_top=top,
            frame_left=left,
        )

    return read_replies


def matching_windows(windows: list[Window], match: str) -> list[Window]:
    """Return the windows with `match` as a case-insensitive substring of class or title."""
    needle = match.lower()
    return [window for window in windows if needle in window.wm_class.lower() or needle in window.title.lower()]


def wait_windows(
    connection: XConnection, match: str, timeout_s: float, count: int, check: Callable[[], None] = lambda: None
) -> list[Window]:
    """Return the matching windows once there are `count`, and once the manager has placed new ones and their programs
    read input (for that it waits at most `PROGRAM_TIMEOUT_S` longer).

    Raises `InfrastructureError` if that takes longer than `timeout_s`, and what `check` raises meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        windows = list_windows(connection)
        found = matching_windows(windows, match)
        if len(found) >= count:
            connection.started_windows &= {window.id for window in windows}
            new = [window.id for window in found if window.id not in connection.started_windows]
            if not new or time.monotonic() > deadline:
                return found
            _wait_until_started(connection, new)
            continue
        check()
        if time.monotonic() > deadline:
            titles = ", ".join(f"{window.wm_class} '{window.title}'" for window in windows) or "none"
            raise InfrastructureError(
                f"{count} window(s) matching '{match}' did not appear within {timeout_s:g} s; windows: {titles}"
            )
        connection.wait_for_root_property("_NET_CLIENT_LIST", _TITLE_POLL_S)


def _wait_until_started(connection: XConnection, identities: list[int]) -> None:
    """Wait until new windows are where they stay: on a busy machine a window is listed before the manager has framed
    and placed it, and before its program has finished its layout."""
    deadline = time.monotonic() + PROGRAM_TIMEOUT_S
    wait_for_manager(connection, PROGRAM_TIMEOUT_S)
    for identity in identities:
        wait_until_input_is_read(connection, max(0.0, deadline - time.monotonic()), identity)
    wait_for_manager(connection, max(0.0, deadline - time.monotonic()))
    connection.started_windows |= set(identities)


def place(connection: XConnection, window: Window, x: int, y: int, width: int | None, height: int | None) -> Window:
    """Move and resize through the window manager. Return the window as it is then (it may have a minimum size).

    Raises `InfrastructureError` if the window closes, or if the manager does not reply within `PLACE_TIMEOUT_S`.
    """
    width, height = width or window.width, height or window.height
    atoms = connection.atoms
    maximized = [0, atoms["_NET_WM_STATE_MAXIMIZED_VERT"], atoms["_NET_WM_STATE_MAXIMIZED_HORZ"], _FROM_PAGER, 0]
    connection.send_root_message(window.id, "_NET_WM_STATE", maximized)
    deadline = time.monotonic() + PLACE_TIMEOUT_S
    requested: tuple[int, int] | None = None
    while True:
        if not wait_for_manager(connection, max(0.0, deadline - time.monotonic())):
            raise InfrastructureError(
                f"the window manager did not place window '{window.title}' within {PLACE_TIMEOUT_S:g} s"
            )
        try:
            current = _describe(connection, window.id)
        except xcffib.Error as error:
            raise InfrastructureError(f"window '{window.title}' closed while it was moved") from error
        corner = (x - current.frame_left, y - current.frame_top)
        if corner == requested or (current.x, current.y, current.width, current.height) == (x, y, width, height):
            return current
        # With static gravity, openbox's next drag would jump by the frame.
        flags = _NORTH_WEST | 0xF << 8 | _FROM_PAGER << 12
        connection.send_root_message(window.id, "_NET_MOVERESIZE_WINDOW", [flags, *corner, width, height])
        requested = corner


def activate(connection: XConnection, window: Window) -> None:
    """Raise, restore and focus a window through the window manager, and wait until it has done so."""
    connection.send_root_message(window.id, "_NET_ACTIVE_WINDOW", [_FROM_PAGER, 0, 0, 0, 0])
    wait_for_manager(connection, _ACTIVATE_TIMEOUT_S)


def close(connection: XConnection, window: Window) -> None:
    """Close a window through the window manager, like its close button."""
    connection.send_root_message(window.id, "_NET_CLOSE_WINDOW", [0, _FROM_PAGER, 0, 0, 0])


def wait_window_manager(connection: XConnection) -> None:
    """Wait until the window manager manages windows.

    It announces itself before it listens, so a probe window is mapped until it is managed.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    core = connection.core

    def wait_for(name: str, period_s: float) -> None:
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"the window manager did not start within {_START_TIMEOUT_S:g} s; check that openbox is installed"
            )
        connection.wait_for_root_property(name, period_s)

    def is_managed(window: int) -> bool:
        return window in _cardinals(connection, connection.root, "_NET_CLIENT_LIST")

    while not _cardinals(connection, connection.root, "_NET_SUPPORTING_WM_CHECK"):
        wait_for("_NET_SUPPORTING_WM_CHECK", 0.2)
    probe = connection.x.generate_id()
    core.CreateWindow(0, probe, connection.root, 0, 0, 8, 8, 0, WindowClass.InputOutput, 0, 0, [])
    while not is_managed(probe):
        core.UnmapWindow(probe)
        core.MapWindow(probe)
        wait_for("_NET_CLIENT_LIST", 0.04)
    core.DestroyWindow(probe)
    while is_managed(probe):
        wait_for("_NET_CLIENT_LIST", 0.04)


def wait_for_manager(connection: XConnection, limit_s: float) -> bool:
    """Wait until the window manager has handled all input so far. Return False if it does not reply.

    A press gives its window the focus only once the window manager has read it, and until then keys go to the window
    that had the focus before. `_NET_REQUEST_FRAME_EXTENTS` (Extended Window Manager Hints) is queued behind the press,
    and the reply is a property of the window that it names.
    """
    core, name = connection.core, "_NET_FRAME_EXTENTS"
    window = connection.x.generate_id()
    mask = [EventMask.PropertyChange]
    core.CreateWindow(0, window, connection.root, 0, 0, 1, 1, 0, WindowClass.InputOutput, 0, CW.EventMask, mask)
    try:
        connection.send_root_message(window, "_NET_REQUEST_FRAME_EXTENTS", [0, 0, 0, 0, 0])
        changes = (each for each in connection.events(limit_s) if isinstance(each, xcffib.xproto.PropertyNotifyEvent))
        return any((each.window, each.atom) == (window, connection.atoms[name]) for each in changes)
    finally:
        core.DestroyWindow(window)


def wait_until_input_is_read(connection: XConnection, limit_s: float, identity: int | None = None) -> bool:
    """Wait until the program of a window (None: of the active one) has read all input. Return False if it lacks support
    or does not reply.

    `_NET_WM_PING` (Extended Window Manager Hints, "Window Manager Protocols") is queued behind the input, so a reply
    means that earlier input was read. GTK, Qt and LibreOffice reply; xterm does not support it. Qt 5 replies to the
    clients that select `StructureNotify`. The reply is untrusted and affects only how long the host waits.
    """
    core, root, ping = connection.core, connection.root, connection.atoms["_NET_WM_PING"]
    window = identity or _active_window(connection)
    try:
        if not window or ping not in _cardinals(connection, window, "WM_PROTOCOLS"):
            return False
    except xcffib.Error:
        return False
    replies = EventMask.SubstructureNotify | EventMask.StructureNotify
    core.ChangeWindowAttributes(root, CW.EventMask, [EventMask.PropertyChange | replies])
    try:
        token = next(_ping_tokens)
        payload = struct.pack("<5I", ping, token, window, 0, 0)
        message = struct.pack("<BBHII20s", 33, 32, 0, window, connection.atoms["WM_PROTOCOLS"], payload)
        core.SendEvent(False, window, EventMask.NoEvent, message)
        connection.x.flush()
        deadline = time.monotonic() + limit_s
        while (remaining := deadline - time.monotonic()) > 0:
            event: Any = connection.next_event(min(remaining, _RECHECK_S))
            if isinstance(event, xcffib.xproto.ClientMessageEvent) and event.window == root:
                if tuple(event.data.data32[:3]) == (ping, token, window):
                    return True
            elif event is None and not (identity or _active_window(connection) == window):
                return False
        return False
    finally:
        core.ChangeWindowAttributes(root, CW.EventMask, [EventMask.PropertyChange])


def active_class(connection: XConnection) -> str:
    """Return the WM_CLASS of the active window; empty if there is none."""
    try:
        reply = connection.core.GetProperty(False, _active_window(connection), Atom.WM_CLASS, Atom.Any, 0, 256).reply()
    except xcffib.Error:
        return ""
    return bytes(reply.value.buf()).decode(errors="replace")


def _active_window(connection: XConnection) -> int:
    return next(iter(_cardinals(connection, connection.root, "_NET_ACTIVE_WINDOW")), 0)
