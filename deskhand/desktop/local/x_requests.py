"""Requests of X clients, as the X server itself tells them (the RECORD extension). Used by `clipboard`.

A guest can name another program's window in a request, but not send it as that program.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import xcffib.record
from xcffib.record import CS, ExtRange, Range, Range8, Range16

from deskhand.desktop.local.x_connection import AuthenticatedConnection, XConnection

CHANGE_PROPERTY, SET_SELECTION_OWNER, SEND_EVENT, ROTATE_PROPERTIES = 18, 22, 25, 114
"""Opcodes of the core protocol."""
_OPCODES = (CHANGE_PROPERTY, SET_SELECTION_OWNER, SEND_EVENT, ROTATE_PROPERTIES)
_START_OF_DATA, _END_OF_DATA, _FROM_CLIENT = 4, 5, 1
MAX_REPLIES = 20_000
"""Replies of the server in one record, each with one or more requests."""


@dataclass(frozen=True)
class XRequest:
    """A request: `client` is the base of its client's resource ids, `data` starts with the opcode."""

    client: int
    opcode: int
    data: bytes

    def word(self, index: int) -> int:
        """Return a 32-bit word of the request, 0 beyond its end."""
        return int.from_bytes(self.data[4 * index : 4 * index + 4], "little")


class RequestRecorder:
    """Records what all clients request of properties, selections and events until it is closed.

    `requests` is then complete, or None if a guest has interfered. Raises X errors.
    """

    def __init__(self, connection: XConnection, name: str, cookie: bytes) -> None:
        self._connection = connection
        self._own = connection.setup.resource_id_base
        self.requests: list[XRequest] | None = None
        self._extension: Any = connection.x(xcffib.record.key)
        self._major = connection.core.QueryExtension(6, "RECORD").reply().major_opcode
        self._context = connection.x.generate_id()
        none, none16 = Range8.synthetic(0, 0), Range16.synthetic(0, 0)
        ranges = [_range(Range8.synthetic(code, code), ExtRange.synthetic(none, none16)) for code in _OPCODES]
        changes = ExtRange.synthetic(Range8.synthetic(self._major, self._major), Range16.synthetic(0, 0xFFFF))
        ranges.append(_range(none, changes))  # a guest that narrows or ends this recording
        self._extension.CreateContext(self._context, 0, 1, len(ranges), [CS.AllClients], ranges)
        connection.sync()
        self._data = AuthenticatedConnection(name, cookie)
        self._replies: Any = self._data(xcffib.record.key).EnableContext(self._context)
        self._data.flush()
        self._replies.reply()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                self.requests = self._finish()
        finally:
            self._extension.FreeContext(self._context)
            self._connection.x.flush()
            self._data.disconnect()

    def _finish(self) -> list[XRequest] | None:
        core, mark = self._connection.core, self._connection.atoms["DESKHAND_SELECTION"]
        core.SetSelectionOwner(0, mark, 0)  # the last request: without it the record is not complete
        self._connection.sync()
        self._extension.DisableContext(self._context)
        self._connection.sync()
        found: list[XRequest] = []
        for _ in range(MAX_REPLIES):
            reply = self._replies.reply()
            if reply.category == _END_OF_DATA:
                break
            if reply.category == _FROM_CLIENT:
                swapped = bool(reply.client_swapped)
                found += [XRequest(reply.xid_base, *each) for each in _split(bytes(reply.data.buf()), swapped)]
        else:
            return None
        is_complete = any(self._is_own(each) and each.word(2) == mark for each in found)
        has_others = any(each.opcode == self._major and not self._is_own(each) for each in found)
        return found if is_complete and not has_others else None

    def _is_own(self, request: XRequest) -> bool:
        return request.client == self._own


def _range(core: Any, extension: Any) -> Any:
    none = Range8.synthetic(0, 0)
    empty = ExtRange.synthetic(none, Range16.synthetic(0, 0))
    return Range.synthetic(core, none, extension, empty, none, none, none, False, False)


def _split(data: bytes, swapped: bool) -> Iterator[tuple[int, bytes]]:
    """Yield opcode and bytes of each request, in little-endian order as far as 32-bit words go."""
    order = ">" if swapped else "<"
    while len(data) >= 4:
        (length,) = struct.unpack_from(f"{order}H", data, 2)
        if length == 0 and len(data) >= 8:  # BIG-REQUESTS: the length follows
            (length,) = struct.unpack_from(f"{order}I", data, 4)
            request = data[:4] + data[8 : 4 * length]
        else:
            request = data[: 4 * length]
        if length == 0:
            return
        words = struct.unpack_from(f"{order}{len(request) // 4}I", request)
        yield request[0], struct.pack(f"<{len(words)}I", *words)
        data = data[4 * length :]
