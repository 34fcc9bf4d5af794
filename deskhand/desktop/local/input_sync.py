"""Asking the program in front whether it has read its input. Invariant: bounded in time; the answer is a guest's word and decides
only how long the host waits.

`_NET_WM_PING` (Extended Window Manager Hints, "Window Manager Protocols"): the message stands in the same queue as the input, so a
program that answers has read all input sent before. GTK, Qt and LibreOffice answer as they read; xterm does not take part.
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
_REASK_S = 0.5


def wait_until_read(connection: XConnection, limit_s: float) -> bool:
    """Wait until the active window's program has read all input so far; False when it does not take part or is silent."""
    window = _active_window(connection)
    if window is None or not _takes_part(connection, window):
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
            event: Any = connection.next_event(min(remaining, _REASK_S))
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


def _takes_part(connection: XConnection, window: int) -> bool:
    try:
        reply = connection.core.GetProperty(False, window, connection.atoms["WM_PROTOCOLS"], Atom.ATOM, 0, 32).reply()
    except xcffib.Error:
        return False
    protocols = struct.unpack(f"<{reply.value_len}I", reply.value.buf()) if reply.format == 32 else ()
    return connection.atoms["_NET_WM_PING"] in protocols
