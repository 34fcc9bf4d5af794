"""Decoding of screenshots that remote machines send as PNG or JPEG.

Used by `osworld_desktop`. Truncated and wrongly sized images raise `FrameError`, and black ones until the machine has
shown something: later a guest may have blackened its screen. The last byte counts: decoders stop reading when they
have all pixels, so they miss a damaged end.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from deskhand.desktop.base import Frame
from deskhand.desktop.local.framebuffer import PixelHash, changed_bbox
from deskhand.errors import FrameError

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_PNG_END, _JPEG_END = b"\0\0\0\0IEND\xae\x42\x60\x82", b"\xff\xd9"
MAX_PIXELS = 8192 * 8192
BLACK_LEVEL = 4
"""A screen without any channel value of at least this is black."""


@dataclass(frozen=True)
class ScreenPolling:
    """When the screen counts as settled after an action.

    Screenshots are taken every `pause_s` until two agree, or until `cap_s` has passed. With `max_screenshots` 1, one
    is taken regardless. An incomplete screenshot is requested up to `max_attempts` times.
    """

    pause_s: float = 0.25
    cap_s: float = 2.0
    max_screenshots: int = 2
    max_attempts: int = 3


def decode_screenshot(data: bytes, size: tuple[int, int] | None, about: str) -> np.ndarray:
    """Return `uint8[H, W, 4]` BGRX of an image of `size` (None: any). Raises `FrameError`. Not for the event loop."""
    if not data.startswith((_PNG, _JPEG)):
        raise FrameError(f"{about}: {len(data)} bytes that are not an image")
    if not (_PNG_END in data if data.startswith(_PNG) else data.rstrip(b"\0").endswith(_JPEG_END)):
        raise FrameError(f"{about}: truncated image")
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            if size is not None and image.size != size:  # before pixels are decoded, which may take seconds
                raise FrameError(f"{about}: image of {image.width}x{image.height} pixels, expected {size[0]}x{size[1]}")
            if image.width * image.height > MAX_PIXELS:
                raise FrameError(f"{about}: image of {image.width}x{image.height} pixels is too large")
            if image.mode.startswith(("I", "F")):
                raise FrameError(f"{about}: image of mode {image.mode}, expected 8 bits per channel")
            image.verify()  # the checksums of a PNG
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            image.load()
            rgb = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, LookupError, Image.DecompressionBombError, EOFError) as error:
        raise FrameError(f"{about}: truncated image or wrong checksum: {error}") from None
    height, width = rgb.shape[:2]
    bgrx = np.empty((height, width, 4), np.uint8)
    bgrx[:, :, :3] = rgb[:, :, ::-1]
    bgrx[:, :, 3] = 255
    bgrx.flags.writeable = False
    return bgrx


class ScreenshotDecoder:
    """Turns the screenshots of one desktop after a reset into numbered frames with their changed box."""

    def __init__(self) -> None:
        self._sequence = 0
        self._last: np.ndarray | None = None
        self._hash: PixelHash | None = None

    def decode(self, data: bytes, size: tuple[int, int] | None, about: str) -> np.ndarray:
        """Like `decode_screenshot`; before the first frame also raises `FrameError` if the screen is black."""
        bgrx = decode_screenshot(data, size, about)
        if self._last is None and int(bgrx[:, :, :3].max()) < BLACK_LEVEL:
            raise FrameError(f"{about}: the screen is black")
        return bgrx

    def frame(self, bgrx: np.ndarray, cursor: tuple[int, int], settle_ms: float, reason: str) -> Frame:
        """Not for the event loop."""
        pixels = bgrx.view(np.uint32)[:, :, 0]
        if self._hash is None or self._last is None or self._last.shape != pixels.shape:
            self._hash, self._last = PixelHash(pixels.shape[1], pixels.shape[0]), None
        box = changed_bbox(self._last, pixels)
        self._last = pixels
        self._sequence += 1
        return Frame(bgrx, self._sequence, self._hash(pixels), settle_ms, reason, box, cursor)
