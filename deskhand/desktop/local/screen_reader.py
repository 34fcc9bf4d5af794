"""Screen readers: copy the screen's pixels.

`mapped` reads the server's own memory (`framebuffer`) without a request. `shared` lets the server copy the screen into
shared memory (MIT-SHM), if its memory cannot be mapped. `server` uses GetImage of the core protocol through the socket.
The server performs the last two atomically.

MIT-SHM is disabled in a mapped server: guests in a jail could not use it and would only try.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import numpy as np
import sysv_ipc

from deskhand.desktop.local import isolation
from deskhand.desktop.local.framebuffer import PIXEL_MASK, Framebuffer
from deskhand.desktop.local.x_connection import XConnection
from deskhand.desktop.local.xserver import XServer
from deskhand.errors import FrameError, InfrastructureError

Capture = Literal["mapped", "shared", "server"]


class SharedMemoryReader:
    """Reads the screen through a System V segment. Raises `FrameError`.

    Only the server's user and this one can attach the segment. It is marked for removal as soon as the server has
    attached it, so the kernel frees it after the last detach, even if a process is killed.
    """

    is_atomic = True

    def __init__(self, connection: XConnection, width: int, height: int) -> None:
        self._connection, self._size, size = connection, (width, height), 4 * width * height
        try:
            self._memory = sysv_ipc.SharedMemory(sysv_ipc.IPC_PRIVATE, sysv_ipc.IPC_CREX, mode=0o600, size=size)
        except (sysv_ipc.Error, MemoryError, ValueError) as error:
            raise FrameError(f"cannot create a shared memory segment of {size} bytes: {error}") from error
        try:
            if (uid := isolation.x_server_uid()) is not None:
                self._memory.uid = self._memory.gid = uid
            self._number = connection.attach(self._memory.id)
        except (sysv_ipc.Error, InfrastructureError) as error:
            self.close()
            raise FrameError(f"the X server does not share memory: {error}") from error
        finally:
            with suppress(sysv_ipc.Error):
                self._memory.remove()

    def copy(self) -> np.ndarray:
        width, height = self._size
        self._connection.capture_into(self._number, width, height)
        return np.frombuffer(self._memory, "<u4", width * height).reshape(height, width) & PIXEL_MASK

    def close(self) -> None:
        if self._memory.attached:
            self._memory.detach()


class GetImageReader:
    """Reads the screen through the connection."""

    is_atomic = True

    def __init__(self, connection: XConnection, width: int, height: int) -> None:
        self._connection, self._size = connection, (width, height)

    def copy(self) -> np.ndarray:
        return self._connection.root_image(*self._size) & PIXEL_MASK

    def close(self) -> None:
        return


ScreenReader = Framebuffer | SharedMemoryReader | GetImageReader


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
