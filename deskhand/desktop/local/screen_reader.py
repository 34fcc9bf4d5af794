"""Where the pixels of a screen are read. Invariant: a way that was asked for is the way used; each says if its copies may tear.

`mapped`: the server's own memory (`framebuffer.py`), no request and no copy by the server. `shared`: the server copies the screen
into memory that it shares with us (MIT-SHM); for a server whose memory cannot be mapped. `server`: the core protocol's GetImage,
answered through the socket, where there is no such memory either. The server answers both in one piece.

MIT-SHM is off in a server that is mapped: guests in a box of their own could not use it and would only try.
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
    def at_once(self) -> bool:
        """Whether a copy is of one instant; otherwise it is torn where the server draws meanwhile (`settle.py`)."""
        ...

    def copy(self) -> np.ndarray:
        """The screen now."""
        ...

    def close(self) -> None: ...


class SharedMemoryReader:
    """The screen as the server copies it into a segment of shared memory. Raises `FrameError`."""

    at_once = True

    def __init__(self, connection: XConnection, width: int, height: int) -> None:
        self._connection, self._size = connection, (width, height)
        try:
            self._segment = Segment(4 * width * height, isolation.server_uid())
        except OSError as error:
            raise FrameError(f"no memory can be shared with the X server: {error}") from error
        try:
            self._number = connection.attach(self._segment.id)
        except InfrastructureError as error:
            self._segment.close()
            raise FrameError(f"the X server shares no memory: {error}") from error
        finally:
            self._segment.remove()

    def copy(self) -> np.ndarray:
        width, height = self._size
        self._connection.fill(self._number, width, height)
        return self._segment.bytes.view("<u4").reshape(height, width) & PIXEL_MASK

    def close(self) -> None:
        self._segment.close()


class GetImageReader:
    """The screen as the server at the end of `connection` sends it."""

    at_once = True

    def __init__(self, connection: XConnection, width: int, height: int) -> None:
        self._connection, self._size = connection, (width, height)

    def copy(self) -> np.ndarray:
        return self._connection.root_image(*self._size) & PIXEL_MASK

    def close(self) -> None:
        return


def open_screen_reader(
    server: XServer, connection: XConnection, width: int, height: int, wanted: Capture | None
) -> ScreenReader:
    """The first of mapped, shared and asked for that can be had, or the one that is wanted. Raises `FrameError`."""
    if wanted in (None, "mapped"):
        try:
            return Framebuffer(server.framebuffer_path, width, height)
        except (OSError, ValueError, FrameError) as error:
            if wanted == "mapped":
                raise FrameError(f"{server.framebuffer_path} cannot be mapped: {error}") from error
    if wanted in (None, "shared"):
        try:
            return SharedMemoryReader(connection, width, height)
        except FrameError:
            if wanted == "shared":
                raise
    return GetImageReader(connection, width, height)


def can_be_mapped(server: XServer, width: int, height: int) -> bool:
    """Whether the memory of a server that has just started can be read."""
    try:
        Framebuffer(server.framebuffer_path, width, height).close()
    except (OSError, ValueError, FrameError):
        return False
    return True
