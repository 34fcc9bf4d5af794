"""Screens that come as pictures. Invariant: a picture that is cut short, black, of another size or no picture is a `FrameError`,
whatever status it came with; it never becomes a frame.

Whole means to its last byte: a decoder that has all its pixels asks for no more, so one that is cut in its last checksum, or has a
wrong one, would pass.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

from deskhand.desktop.base import Frame
from deskhand.desktop.local.framebuffer import PixelHash, changed_bbox
from deskhand.errors import FrameError

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
LARGEST_PIXELS = 8192 * 8192
BLACK = 4
"""A screen on which no channel is lighter than this is black."""


def decode_screenshot(data: bytes, size: tuple[int, int] | None, about: str) -> np.ndarray:
    """`uint8[H, W, 4]` BGRX of a PNG or JPEG of `size` (width, height; None: any). Raises `FrameError`. Not for the event loop."""
    if not data.startswith((_PNG, _JPEG)):
        raise FrameError(f"{about}: {len(data)} bytes that are no picture")
    if not (_png_is_whole(data) if data.startswith(_PNG) else data.rstrip(b"\0").endswith(_JPEG_END)):
        raise FrameError(f"{about}: the picture is not whole: it is cut short, or a checksum in it is wrong")
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as picture:
            if picture.width * picture.height > LARGEST_PIXELS:
                raise FrameError(f"{about}: a picture of {picture.width}x{picture.height} pixels")
            picture.load()
            rgb = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, EOFError) as error:
        raise FrameError(f"{about}: the picture is not whole: {error}") from None
    height, width = rgb.shape[:2]
    if size is not None and (width, height) != size:
        raise FrameError(f"{about}: a picture of {width}x{height} pixels, but the screen has {size[0]}x{size[1]}")
    if int(rgb.max()) < BLACK:
        raise FrameError(f"{about}: the screen is black")
    bgrx = np.empty((height, width, 4), np.uint8)
    bgrx[:, :, :3] = rgb[:, :, ::-1]
    bgrx[:, :, 3] = 255
    bgrx.flags.writeable = False
    return bgrx


def _png_is_whole(data: bytes) -> bool:
    """Whether all chunks are there, to the last one, with their checksums (PNG, ISO/IEC 15948, 5.3: length, type, data, CRC-32)."""
    at = len(_PNG)
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        end = at + 8 + length
        if end + 4 > len(data) or zlib.crc32(memoryview(data)[at + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
            return False
        if data[at + 4 : at + 8] == b"IEND":
            return True
        at = end + 4
    return False


class ScreenshotDecoder:
    """Makes frames of a desktop's pictures: numbers them and says what has changed."""

    def __init__(self) -> None:
        self._sequence = 0
        self._last: np.ndarray | None = None
        self._hash: PixelHash | None = None

    def frame(self, bgrx: np.ndarray, cursor: tuple[int, int], settled_ms: float, reason: str) -> Frame:
        """Not for the event loop."""
        words = bgrx.view(np.uint32)[:, :, 0]
        if self._hash is None or self._last is None or self._last.shape != words.shape:
            self._hash, self._last = PixelHash(words.shape[1], words.shape[0]), None
        box = changed_bbox(self._last, words)
        self._last = words
        self._sequence += 1
        return Frame(bgrx, self._sequence, self._hash(words), settled_ms, reason, box, cursor)
