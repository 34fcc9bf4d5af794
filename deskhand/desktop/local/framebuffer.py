"""The screen's pixels: the X server's framebuffer, the cursor drawn on a copy, the changed area, and a hash.

`Xvfb -fbdir` keeps the screen in an X window dump file: 32-bit big-endian header words, a color map of 12-byte entries,
then rows of little-endian BGRX. Pixels are `uint32[H, W]`.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
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
        self._live = rows.reshape(height, bytes_per_line // 4)[:, :width]

    def close(self) -> None:
        """Unmap the file; copies stay valid."""
        del self._live
        self._map.close()

    def sample(self, step: int) -> np.ndarray:
        """Return a copy of every `step`-th row and column, `uint8[h, w, 4]`; torn if the server draws meanwhile."""
        found = np.array(self._live[::step, ::step], order="C")
        return found.view(np.uint8).reshape(*found.shape, 4)

    def copy(self) -> np.ndarray:
        """Return the current screen with the undefined fourth byte set to zero; torn if the server draws meanwhile."""
        return self._live & PIXEL_MASK


@dataclass(frozen=True)
class PointerImage:
    """The cursor image: `argb` is `uint32[h, w]`, premultiplied; its pixel (`hot_x`, `hot_y`) is at (`x`, `y`)."""

    x: int
    y: int
    hot_x: int
    hot_y: int
    argb: np.ndarray


def draw_cursor(pixels: np.ndarray, image: PointerImage) -> tuple[int, int, np.ndarray] | None:
    """Draw on `pixels` in place; return (left, top, covered pixels), or None if the cursor is off screen.

    The X server keeps the pointer out of its pixels (`XConnection.hide_pointer`), so that moving it causes no damage
    events. Each channel is `source + under * (255 - alpha) / 255` (X Rendering Extension, operator Over).
    """
    height, width = pixels.shape
    image_height, image_width = image.argb.shape
    left, top = image.x - image.hot_x, image.y - image.hot_y
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + image_width, width), min(top + image_height, height)
    if x0 >= x1 or y0 >= y1:
        return None
    under = pixels[y0:y1, x0:x1].copy()
    source = _channels(image.argb[y0 - top : y1 - top, x0 - left : x1 - left])
    mixed = source + (_channels(under) * (255 - source[..., 3:]) + 127) // 255
    mixed[..., 3] = 0
    pixels[y0:y1, x0:x1] = np.minimum(mixed, 255).astype(np.uint8).view("<u4")[..., 0]
    return x0, y0, under


def _channels(pixels: np.ndarray) -> np.ndarray:
    """`uint16[h, w, 4]`: blue, green, red, alpha."""
    return np.ascontiguousarray(pixels, "<u4").view(np.uint8).reshape(*pixels.shape, 4).astype(np.uint16)


def check_not_black(pixels: np.ndarray) -> None:
    """Raise `FrameError` if a fresh desktop is all black: its root window is not, so nothing was drawn."""
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
    """64-bit hash, equal in every process: the sum of pixels times fixed random odd numbers, modulo 2^64."""

    def __init__(self, width: int, height: int) -> None:
        generator = np.random.default_rng(20_240_229)
        self._weights = generator.integers(0, 2**63, size=width * height, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def __call__(self, pixels: np.ndarray) -> str:
        with np.errstate(over="ignore"):
            total = int(np.multiply(pixels.reshape(-1), self._weights, dtype=np.uint64).sum(dtype=np.uint64))
        return f"{total:016x}"
