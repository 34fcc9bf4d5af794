"""Framebuffer: the screen's pixels, read from the X server's memory.

`Xvfb -fbdir` keeps the screen in an X window dump file: 32-bit big-endian header words, a color map of 12-byte entries,
then rows of little-endian BGRX.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np

from deskhand.errors import FrameError

_XWD_VERSION = 7
PIXEL_MASK = np.uint32(0x00FFFFFF)


class Framebuffer:
    """Map the dump file at `path`. Raises `FrameError` unless it is a `width` x `height` screen of 32-bit pixels."""

    is_atomic = False

    def __init__(self, path: Path, width: int, height: int) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        words = struct.unpack(">25I", self._map[:100])
        header_size, version, found_width, found_height = words[0], words[1], words[4], words[5]
        bits_per_pixel, bytes_per_line, colors = words[11], words[12], words[19]
        if version != _XWD_VERSION or bits_per_pixel != 32 or words[7] != 0:
            raise FrameError(f"{path}: not a little-endian 32-bit X window dump")
        if (found_width, found_height) != (width, height):
            raise FrameError(f"{path}: expected a {width}x{height} screen, got {found_width}x{found_height}")
        offset = header_size + colors * 12
        if len(self._map) < offset + bytes_per_line * height:
            raise FrameError(f"{path}: truncated")
        rows = np.frombuffer(self._map, dtype="<u4", count=bytes_per_line // 4 * height, offset=offset)
        self.live = rows.reshape(height, bytes_per_line // 4)[:, :width]
        """`uint32[H, W]`: the current screen; it changes while it is read."""

    def close(self) -> None:
        """Unmap the file. Copies stay valid; `live` does not."""
        del self.live
        self._map.close()

    def copy(self) -> np.ndarray:
        """Return `uint32[H, W]` with the undefined fourth byte set to zero."""
        return self.live & PIXEL_MASK


def check_not_black(pixels: np.ndarray) -> None:
    """Raise `FrameError` if the screen is all black: the root window never is, so nothing was drawn."""
    if not pixels.any():
        raise FrameError("the screen is black: the X server has not drawn anything")


def changed_bbox(before: np.ndarray | None, after: np.ndarray) -> tuple[int, int, int, int] | None:
    """Return the half-open box (left, top, right, bottom) of the changed pixels, or None."""
    if before is None or before.shape != after.shape:
        return (0, 0, after.shape[1], after.shape[0])
    different = before != after
    rows = np.flatnonzero(different.any(axis=1))
    if rows.size == 0:
        return None
    columns = np.flatnonzero(different[rows[0] : rows[-1] + 1].any(axis=0))
    return (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


class PixelHash:
    """64-bit universal hash, equal in every process.

    The sum of pixel words times fixed random odd numbers, modulo 2^64.
    """

    def __init__(self, width: int, height: int) -> None:
        generator = np.random.default_rng(20_240_229)
        self._weights = generator.integers(0, 2**63, size=width * height, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def __call__(self, pixels: np.ndarray) -> str:
        words = pixels.reshape(-1)
        with np.errstate(over="ignore"):
            total = int(np.multiply(words, self._weights, dtype=np.uint64).sum(dtype=np.uint64))
        return f"{total:016x}"
