"""Clipboard: read an X selection, bounded in time and size. The text is untrusted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import xcffib.xproto
from xcffib.xproto import CW, Atom, EventMask, Property, WindowClass

from deskhand.desktop.local.x_connection import XConnection
from deskhand.desktop.local.x_requests import (
    CHANGE_PROPERTY,
    ROTATE_PROPERTIES,
    SEND_EVENT,
    SET_SELECTION_OWNER,
    RequestRecorder,
    XRequest,
)
from deskhand.desktop.local.xserver import XServer

MAX_BYTES = 4 * 1024 * 1024
_SELECTION_NOTIFY = 31
"""Code of the event in the core protocol."""


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


def copied_text(connection: XConnection, server: XServer, window: int, copy: Callable[[], object]) -> str | None:
    """Return the text that the program of `window` puts into the clipboard when `copy` is called; None if it does not.

    None also if another program claims the clipboard, even in the name of that window, or writes the answer.
    """
    clipboard = _owner(connection, "CLIPBOARD")[0]
    of_client = ~connection.setup.resource_id_mask
    with RequestRecorder(connection, server.name, server.cookie) as recorder:
        copy()
        text = read(connection, "CLIPBOARD")
    own, program = connection.setup.resource_id_base, window & of_client
    claims, answers = set(), set()
    for each in recorder.requests or ():
        if each.opcode == SET_SELECTION_OWNER:
            claims |= {each.client} if each.word(2) == clipboard else set()
        elif each.word(1) & of_client in (own, connection.root & of_client) and _can_answer(each, connection):
            answers.add(each.client)
    return text if claims == {program} and answers <= {program} else None


def _can_answer(request: XRequest, connection: XConnection) -> bool:
    """Return whether a request writes the text for this client, or tells it that it was written."""
    if request.opcode == SEND_EVENT:
        return request.data[12] & 0x7F == _SELECTION_NOTIFY
    is_write = request.opcode == CHANGE_PROPERTY and request.word(2) == connection.atoms["DESKHAND_SELECTION"]
    return is_write or request.opcode == ROTATE_PROPERTIES


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
