"""Screen readers: copy the screen's pixels.

`mapped` reads the server's own memory (`framebuffer`) without a request. `shared` lets the server copy the screen into
shared memory (MIT-SHM), if its memory cannot be mapped. `server` uses GetImage of the core protocol through the socket.
The server performs the last two atomically.

MIT-SHM is disabled in a mapped server: guests in a jail could not use it and would only try.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from deskhand.desktop.local import isolation
from deskhand.desktop.local.framebuffer import PIXEL_MASK, Framebuffer
from deskhand.desktop.local.shared_memory import Segment
from deskhand.desktop.local.x_connection import XConnection
from deskhand.desktop.local.xserver import XServer
from deskhand.errors import FrameError, InfrastructureError

Capture = Literal["mapped", "shared", "server"]


class ScreenReader(Protocol):
    """Pixels are `uint32[H, W]` with the undefined fourth byte set to zero."""

    @property
    def is_atomic(self) -> bool:
        """Whether a copy shows one instant; otherwise it is torn if the server draws meanwhile (`settle`)."""
        ...

    def copy(self) -> np.ndarray:
        """Return the current screen."""
        ...

    def close(self) -> None: ...


class SharedMemoryReader:
    """Reads the screen through a shared-memory segment. Raises `FrameError`."""

    is_atomic = True

    def __init__(self, connection: XConnection, width: int, height: int) -> None:
        self._connection, self._size = connection, (width, height)
        try:
            self._segment = Segment(4 * width * height, isolation.x_server_uid())
        except OSError as error:
            raise FrameError(f"cannot share memory with the X server: {error}") from error
        try:
            self._number = connection.attach(self._segment.id)
        except InfrastructureError as error:
            self._segment.close()
            raise FrameError(f"the X server does not share memory: {error}") from error
        finally:
            self._segment.remove()

    def copy(self) -> np.ndarray:
        width, height = self._size
        self._connection.capture_into(self._number, width, height)
        return self._segment.bytes.view("<u4").reshape(height, width) & PIXEL_MASK

    def close(self) -> None:
        self._segment.close()


class GetImageReader:
    """Reads the screen through the connection."""

    is_atomic = True

    def __init__(self, connection: XConnection, width: int, height: int) -> None:
        self._connection, self._size = connection, (width, height)

    def copy(self) -> np.ndarray:
        return self._connection.root_image(*self._size) & PIXEL_MASK

    def close(self) -> None:
        return


def open_screen_reader(
    server: XServer, connection: XConnection, width: int, height: int, capture: Capture | None
) -> ScreenReader:
    """Return the requested reader, or the first that works of mapped, shared and server. Raises `FrameError`."""
    if capture in (None, "mapped"):
        try:
            return Framebuffer(server.framebuffer_path, width, height)
        except (OSError, ValueError, FrameError) as error:
            if capture == "mapped":
                raise FrameError(f"{server.framebuffer_path}: cannot be mapped: {error}") from error
    if capture in (None, "shared"):
        try:
            return SharedMemoryReader(connection, width, height)
        except FrameError:
            if capture == "shared":
                raise
    return GetImageReader(connection, width, height)


def is_mappable(server: XServer, width: int, height: int) -> bool:
    """Return whether the framebuffer of a server that has just started can be mapped."""
    try:
        Framebuffer(server.framebuffer_path, width, height).close()
    except (OSError, ValueError, FrameError):
        return False
    return True
