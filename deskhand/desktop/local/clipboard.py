"""Clipboard: read an X selection, bounded in time and size. The text is untrusted."""

from __future__ import annotations

import time
from typing import Any

import xcffib.xproto
from xcffib.xproto import CW, Atom, EventMask, Property, WindowClass

from deskhand.desktop.local.x_connection import XConnection

MAX_BYTES = 4 * 1024 * 1024


def read(connection: XConnection, selection: str, timeout_s: float = 1.0) -> str | None:
    """Return the text of `selection` ("CLIPBOARD", "PRIMARY"), or None without an owner, text or timely reply."""
    core, atoms = connection.core, connection.atoms
    name, owner = _owner(connection, selection)
    if owner == 0:
        return None
    window = connection.x.generate_id()
    mask, values = CW.OverrideRedirect | CW.EventMask, [1, EventMask.PropertyChange]
    core.CreateWindow(0, window, connection.root, -10, -10, 1, 1, 0, WindowClass.InputOnly, 0, mask, values)
    try:
        deadline = time.monotonic() + timeout_s
        for target in (atoms["UTF8_STRING"], Atom.STRING):
            core.ConvertSelection(window, name, target, atoms["DESKHAND_SELECTION"], 0)
            answer = _wait(connection, xcffib.xproto.SelectionNotifyEvent, deadline)
            if answer is None:
                return None
            if answer.property != 0:
                data = _read_property(connection, window, deadline)
                encoding = "latin-1" if target == Atom.STRING else "utf-8"
                return None if data is None else data.decode(encoding, errors="replace")
        return None
    finally:
        core.DestroyWindow(window)
        connection.x.flush()


def owns_clipboard(connection: XConnection, window: int) -> bool:
    """Return whether the X client of `window` owns the clipboard."""
    owner = _owner(connection, "CLIPBOARD")[1]
    of_client = ~connection.x.get_setup().resource_id_mask
    return owner != 0 and owner & of_client == window & of_client


def _owner(connection: XConnection, selection: str) -> tuple[int, int]:
    """Return the atom of a selection and the window that owns it, 0 if none."""
    name = connection.core.InternAtom(False, len(selection), selection).reply().atom
    return name, connection.core.GetSelectionOwner(name).reply().owner


def _wait(connection: XConnection, kind: type, deadline: float) -> Any:
    return next((event for event in connection.events(deadline - time.monotonic()) if isinstance(event, kind)), None)


def _get_and_delete(connection: XConnection, window: int) -> Any:
    name = connection.atoms["DESKHAND_SELECTION"]
    return connection.core.GetProperty(True, window, name, Atom.Any, 0, MAX_BYTES // 4).reply()


def _read_property(connection: XConnection, window: int, deadline: float) -> bytes | None:
    """Return the property's bytes. Large selections arrive in pieces (ICCCM 2.7.2, INCR)."""
    reply = _get_and_delete(connection, window)
    if reply.type != connection.atoms["INCR"]:
        return bytes(reply.value.buf())
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < MAX_BYTES:
        event = _wait(connection, xcffib.xproto.PropertyNotifyEvent, deadline)
        if event is None:
            return None
        if event.window != window or event.state != Property.NewValue:
            continue
        piece = bytes(_get_and_delete(connection, window).value.buf())
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
    return None
