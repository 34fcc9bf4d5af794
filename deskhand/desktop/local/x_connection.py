"""The host's connection to a desktop's X server.

Not thread-safe. Failures become `InfrastructureError`, and waiting for the server is bounded even if a guest has
grabbed it. Whether a guest has is read at the time limit: a moment later it may have let go.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import xcffib
import xcffib.damage
import xcffib.record
import xcffib.shm
import xcffib.xfixes
import xcffib.xproto
import xcffib.xtest
from xcffib.ffi import ffi
from xcffib.xproto import EventMask, PropMode

from deskhand.desktop.local import processes
from deskhand.desktop.local.framebuffer import PointerImage
from deskhand.errors import GuestFailure, InfrastructureError

_ATOMS = (
    "_NET_CLIENT_LIST", "_NET_SUPPORTING_WM_CHECK", "_NET_WM_NAME", "_NET_FRAME_EXTENTS", "_NET_MOVERESIZE_WINDOW",
    "_NET_WM_STATE", "_NET_WM_STATE_MAXIMIZED_VERT", "_NET_WM_STATE_MAXIMIZED_HORZ", "UTF8_STRING", "INCR",
    "DESKHAND_SELECTION", "_NET_ACTIVE_WINDOW", "_NET_CLOSE_WINDOW", "_NET_WM_PING", "WM_PROTOCOLS",
    "_NET_REQUEST_FRAME_EXTENTS",
)  # fmt: skip
SYNC_TIMEOUT_S = 4.0
_CREDENTIALS = struct.Struct("3i")
"""`struct ucred`: process, user and group id."""
_SOCKET_ERROR = 1
"""`XCB_CONN_ERROR`; other codes are mistakes of this client."""
_ALL_PLANES, _Z_PIXMAP = 0xFFFFFFFF, 2
_GET_IMAGE, _SHARED_GET_IMAGE = 73, 4
"""Numbers of the requests, in the core protocol and in MIT-SHM."""
_MIT_SHM = "MIT-SHM"
_OWN_RESOURCE_ERRORS = (xcffib.damage.BadDamageError, xcffib.shm.BadSegError, xcffib.record.BadContextError)
"""About resources of which this connection names its own only."""
_RESOURCE_ERRORS = (xcffib.xproto.WindowError, xcffib.xproto.DrawableError, xcffib.xproto.PixmapError)


def _with_causes(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def guests_doing(error: BaseException | None) -> str:
    """Return what guests did to the server, if an error of the host's requests can have no other cause.

    The host takes pictures of the whole screen only, as large as it was at the start, and needs little memory.
    """
    for each in _with_causes(error):
        if isinstance(each, xcffib.xproto.AllocError):
            return "guests used up the memory of the X server"
        if isinstance(each, xcffib.xproto.MatchError) and (
            each.major_opcode == _GET_IMAGE or each.minor_opcode == _SHARED_GET_IMAGE
        ):
            return "a guest changed the size of the screen"  # RandR
    return ""


@contextmanager
def x_errors(doing: str) -> Iterator[None]:
    """Convert X failures to `InfrastructureError`; `doing` describes the operation."""
    try:
        yield
    except (xcffib.XcffibException, OSError, struct.error) as error:
        raise InfrastructureError(f"the X server failed while {doing}: {type(error).__name__} {error}") from error


def _wait_readable(descriptor: int, timeout_s: float) -> None:
    poller = select.poll()  # select() rejects descriptors above 1023
    poller.register(descriptor, select.POLLIN)
    poller.poll(max(0.0, timeout_s * 1000))


def _peer(descriptor: int) -> int:
    """Return the process at the other end of a local socket."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[0]


class AuthenticatedConnection(xcffib.Connection):
    """xcffib's `auth` argument splits the cookie at colons and frees it before use."""

    def __init__(self, display: str, cookie: bytes) -> None:
        name, data = (ffi.new("char[]", value) for value in (b"MIT-MAGIC-COOKIE-1", cookie))
        auth_info: Any = ffi.new("xcb_auth_info_t *")
        auth_info.name, auth_info.namelen = name, len(name) - 1
        auth_info.data, auth_info.datalen = data, len(cookie)
        screen = ffi.new("int *")
        library: Any = xcffib.lib
        self._conn = library.xcb_connect_to_display_with_auth_info(display.encode(), auth_info, screen)
        self.pref_screen = screen[0]
        self.invalid()
        self._init_x()


class XConnection:
    """`name` is e.g. ":12", `cookie` its 16-byte MIT-MAGIC-COOKIE-1."""

    def __init__(self, name: str, cookie: bytes) -> None:
        self.sync_timeout_s = SYNC_TIMEOUT_S
        self.panel_windows: frozenset[int] = frozenset()
        """Windows of the desktop itself, which are not listed with those of the user."""
        self.started_windows: set[int] = set()
        """Windows that the manager has placed and whose programs have read input."""
        with x_errors("connecting"):
            self.x = AuthenticatedConnection(name, cookie)
            self.core: Any = self.x.core
            self.setup: Any = self.x.get_setup()
            self.root: int = self.setup.roots[0].root
            self.test: Any = self.x(xcffib.xtest.key)
            requests = {atom: self.core.InternAtom(False, len(atom), atom) for atom in _ATOMS}
            self.atoms: dict[str, int] = {atom: request.reply().atom for atom, request in requests.items()}
            self._damage_extension: Any = self.x(xcffib.damage.key)
            self._damage_extension.QueryVersion(1, 1).reply()
            self._damage = self.x.generate_id()
            self._damage_extension.Create(self._damage, self.root, xcffib.damage.ReportLevel.NonEmpty)
            self._fixes: Any = self.x(xcffib.xfixes.key)
            self._fixes.QueryVersion(4, 0).reply()
            self.core.ChangeWindowAttributes(self.root, xcffib.xproto.CW.EventMask, [EventMask.PropertyChange])
            self._descriptor = self.x.get_file_descriptor()
            self._server_pid = _peer(self._descriptor)
            self.sync()

    def sync(self) -> None:
        """Wait until the server has processed everything sent before (one round trip).

        Raises `InfrastructureError` after `sync_timeout_s`, so that a hung server blocks no caller; `GuestFailure` if
        it serves guests instead.
        """
        sequence = self.core.GetInputFocus().sequence
        self.x.flush()
        run_time_s, deadline = processes.run_time_s(self._server_pid), time.monotonic() + self.sync_timeout_s
        reply, error = ffi.new("void **"), ffi.new("xcb_generic_error_t **")
        library: Any = xcffib.lib
        while not library.xcb_poll_for_reply(self.x._conn, sequence, reply, error):
            remaining = deadline - time.monotonic()
            if remaining > 0:
                _wait_readable(self._descriptor, remaining)
                continue
            silence = self._silence(run_time_s)
            if not library.xcb_poll_for_reply(self.x._conn, sequence, reply, error):
                self.x.discard_reply(sequence)
                raise silence
            break
        try:
            if reply[0] == ffi.NULL:
                raise xcffib.ConnectionException("connection lost")
        finally:
            library.free(reply[0])
            library.free(error[0])

    def _silence(self, run_time_s: float) -> InfrastructureError:
        """Return the error for a server that does not answer; `run_time_s` is its processor time at the request.

        One that sleeps serves another client only. One that ran for half of the time worked for its clients: it was not
        the processor that it lacked.
        """
        silent = f"the X server did not respond within {self.sync_timeout_s:g} s"
        if processes.state(self._server_pid) == "S":
            return GuestFailure(f"{silent}: a guest has grabbed it")
        if processes.run_time_s(self._server_pid) - run_time_s > self.sync_timeout_s / 2:
            return GuestFailure(f"{silent}: guests keep it at work")
        return InfrastructureError(f"{silent}: it hangs, or waits for a processor")

    def is_lost(self) -> bool:
        """Return whether the server has closed this connection, as it does when a client kills another."""
        return self.x.has_error() == _SOCKET_ERROR

    def is_robbed(self, error: BaseException | None) -> bool:
        """Return whether an error says that a resource of this connection is gone, which only a guest can destroy."""
        for each in _with_causes(error):
            if isinstance(each, _OWN_RESOURCE_ERRORS):
                return True
            named = getattr(each, "bad_value", 0) if isinstance(each, _RESOURCE_ERRORS) else 0
            if named and named & ~self.setup.resource_id_mask == self.setup.resource_id_base:
                return True
        return False

    def pointer(self) -> tuple[int, int]:
        """Return the pointer position (one round trip)."""
        reply = self.core.QueryPointer(self.root).reply()
        return reply.root_x, reply.root_y

    def hide_pointer(self) -> None:
        """Hide the server-drawn cursor for the lifetime of this connection; guests do not notice."""
        self._fixes.HideCursor(self.root)
        self.x.flush()

    def pointer_image(self) -> PointerImage:
        """Return the cursor position and image, drawn or hidden (one round trip)."""
        image = self._fixes.GetCursorImage().reply()
        argb = np.frombuffer(image.cursor_image.buf(), np.uint32).reshape(image.height, image.width)
        return PointerImage(image.x, image.y, image.xhot, image.yhot, argb)

    def root_image(self, width: int, height: int) -> np.ndarray:
        """Return the screen as `uint32[height, width]`, read-only and atomic.

        Reads the reply's memory directly: xcffib would create an object per byte.
        """
        cookie = self.core.GetImage(_Z_PIXMAP, self.root, 0, 0, width, height, _ALL_PLANES)
        reply = self.x.wait_for_reply(cookie.sequence)
        memory: Any = ffi.buffer(reply.cdata, 32 + 4 * width * height)
        return np.frombuffer(memory, "<u4", offset=32).reshape(height, width)

    def attach(self, segment: int) -> int:
        """Attach a System V segment to the server; return its number. Raises `InfrastructureError`."""
        with x_errors("sharing memory"):
            # Using an absent extension ends the connection.
            if not self.core.QueryExtension(len(_MIT_SHM), _MIT_SHM).reply().present:
                raise InfrastructureError("the X server was started without MIT-SHM")
            self._shared: Any = self.x(xcffib.shm.key)
            self._shared.QueryVersion().reply()
            number = self.x.generate_id()
            self._shared.AttachChecked(number, segment, False).check()
        return number

    def capture_into(self, number: int, width: int, height: int) -> None:
        """Write the screen atomically into an attached segment (one round trip)."""
        self._shared.GetImage(self.root, 0, 0, width, height, _ALL_PLANES, _Z_PIXMAP, number, 0).reply()

    def next_event(self, timeout_s: float) -> Any | None:
        """Return the next event, or None after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                event = self.x.poll_for_event()
            except xcffib.xproto.WindowError:
                continue  # the target window has just closed
            if event is not None:
                return event
            self.x.flush()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            _wait_readable(self._descriptor, remaining)
            if self.x.has_error():
                raise xcffib.ConnectionException("connection lost")

    def events(self, timeout_s: float) -> Iterator[Any]:
        """Iterate over the events of the next `timeout_s`, however many there are; looks at least once if it is > 0."""
        deadline, remaining = time.monotonic() + timeout_s, timeout_s
        while remaining > 0 and (event := self.next_event(remaining)) is not None:
            yield event
            remaining = deadline - time.monotonic()

    def wait_for_damage(self, timeout_s: float) -> bool:
        """Return whether something was drawn within `timeout_s`."""
        return any(isinstance(event, xcffib.damage.NotifyEvent) for event in self.events(timeout_s))

    def has_damage(self, limit_s: float) -> bool:
        """Return whether the server has reported drawing, without waiting; clears the reports.

        Also True if a guest causes events faster than they can be read within `limit_s`.
        """
        deadline, found = time.monotonic() + limit_s, False
        while (event := self.next_event(0.0)) is not None:
            found = found or isinstance(event, xcffib.damage.NotifyEvent)
            if time.monotonic() > deadline:
                return True
        return found

    def wait_for_root_property(self, name: str, timeout_s: float) -> bool:
        """Return whether the root window's property `name` changed within `timeout_s`."""
        changes = (event for event in self.events(timeout_s) if isinstance(event, xcffib.xproto.PropertyNotifyEvent))
        return any((event.window, event.atom) == (self.root, self.atoms[name]) for event in changes)

    def clear_damage(self) -> None:
        """Re-arm the report of the next drawing."""
        self._damage_extension.Subtract(self._damage, 0, 0)
        self.x.flush()

    def set_string(self, window: int, name: int, kind: int, data: bytes) -> None:
        self.core.ChangeProperty(PropMode.Replace, window, name, kind, 8, len(data), data)

    def send_root_message(self, window: int, kind: str, data: list[int]) -> None:
        """Send the window manager a client message about `window`."""
        payload = struct.pack("<5i", *data)
        event = struct.pack("<BBHII20s", 33, 32, 0, window, self.atoms[kind], payload)
        mask = EventMask.SubstructureRedirect | EventMask.SubstructureNotify
        self.core.SendEvent(False, self.root, mask, event)
        self.x.flush()

    def close(self) -> None:
        with suppress(xcffib.ConnectionException, OSError):
            self.x.disconnect()
