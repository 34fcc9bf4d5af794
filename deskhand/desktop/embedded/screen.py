"""Where the pixels of a screen are read. Invariant: a whole copy is of one instant, and a way that was asked for is the way used.

`mapped`: the server's own memory (`framebuffer.py`), no request and no copy by the server. `server`: the core protocol's GetImage,
which the server answers in one piece; for a server whose memory cannot be mapped. The MIT-SHM extension would spare the way through
the socket, but our servers offer it to nobody: guests in a box of their own could not use it and would only try.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from deskhand.desktop.embedded.connection import Connection
from deskhand.desktop.embedded.framebuffer import PIXEL_MASK, Framebuffer
from deskhand.desktop.embedded.xserver import XServer
from deskhand.errors import FrameError

Capture = Literal["mapped", "server"]


class Screen(Protocol):
    """Pixels are `uint32[H, W]` with the undefined fourth byte set to zero."""

    def copy(self) -> np.ndarray:
        """The screen now; torn where it is just being drawn and the way is `mapped`."""
        ...

    def whole_copy(self, attempts: int = 3) -> np.ndarray | None:
        """A copy during which nothing was drawn, or None when every attempt saw a change."""
        ...

    def close(self) -> None: ...


class ServerImage:
    """The screen as the server at the end of `connection` sends it; each copy is of one instant."""

    def __init__(self, connection: Connection, width: int, height: int) -> None:
        self._connection, self._size = connection, (width, height)

    def copy(self) -> np.ndarray:
        return self._connection.root_image(*self._size) & PIXEL_MASK

    def whole_copy(self, attempts: int = 3) -> np.ndarray | None:
        return self.copy()

    def close(self) -> None:
        return


def open_screen(server: XServer, connection: Connection, width: int, height: int, wanted: Capture | None) -> Screen:
    """The mapped memory, and the server's answers where that cannot be had and was not asked for. Raises `FrameError`."""
    if wanted == "server":
        return ServerImage(connection, width, height)
    try:
        return Framebuffer(server.framebuffer_path, width, height)
    except (OSError, ValueError, FrameError) as error:
        if wanted == "mapped":
            raise FrameError(f"{server.framebuffer_path} cannot be mapped: {error}") from error
        return ServerImage(connection, width, height)
