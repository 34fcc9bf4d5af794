"""Input synchronization: wait until the active window's program has read its input.

`_NET_WM_PING` (Extended Window Manager Hints, "Window Manager Protocols") is queued behind the input, so a reply means
that earlier input was read. GTK, Qt and LibreOffice reply; xterm does not support it. The reply is untrusted and
affects only how long the host waits.
"""

from __future__ import annotations

import itertools
import struct
import time
from typing import Any

import xcffib.xproto
from xcffib.xproto import CW, Atom, EventMask

from deskhand.desktop.local.x_connection import XConnection

_tokens = itertools.count(1)
_RECHECK_S = 0.5


def wait_until_read(connection: XConnection, limit_s: float) -> bool:
    """Wait until the active program has read all input. Return False if it lacks support or does not reply."""
    window = _active_window(connection)
    if window is None or not _supports_ping(connection, window):
        return False
    core, root = connection.core, connection.root
    core.ChangeWindowAttributes(root, CW.EventMask, [EventMask.PropertyChange | EventMask.SubstructureNotify])
    try:
        token = next(_tokens)
        payload = struct.pack("<5I", connection.atoms["_NET_WM_PING"], token, window, 0, 0)
        message = struct.pack("<BBHII20s", 33, 32, 0, window, connection.atoms["WM_PROTOCOLS"], payload)
        core.SendEvent(False, window, EventMask.NoEvent, message)
        connection.x.flush()
        deadline = time.monotonic() + limit_s
        while (remaining := deadline - time.monotonic()) > 0:
            event: Any = connection.next_event(min(remaining, _RECHECK_S))
            if isinstance(event, xcffib.xproto.ClientMessageEvent) and event.window == root:
                if tuple(event.data.data32[:3]) == (connection.atoms["_NET_WM_PING"], token, window):
                    return True
            elif event is None and _active_window(connection) != window:
                return False
        return False
    finally:
        core.ChangeWindowAttributes(root, CW.EventMask, [EventMask.PropertyChange])


def _active_window(connection: XConnection) -> int | None:
    reply = connection.core.GetProperty(
        False, connection.root, connection.atoms["_NET_ACTIVE_WINDOW"], Atom.WINDOW, 0, 1
    ).reply()
    return struct.unpack("<I", reply.value.buf())[0] or None if (reply.format, reply.value_len) == (32, 1) else None


def _supports_ping(connection: XConnection, window: int) -> bool:
    try:
        reply = connection.core.GetProperty(False, window, connection.atoms["WM_PROTOCOLS"], Atom.ATOM, 0, 32).reply()
    except xcffib.Error:
        return False
    protocols = struct.unpack(f"<{reply.value_len}I", reply.value.buf()) if reply.format == 32 else ()
    return connection.atoms["_NET_WM_PING"] in protocols
