"""Cursor overlay: draw the pointer on a screenshot, reversibly.

The X server keeps the pointer out of its pixels (`XConnection.hide_pointer`), so that moving it causes no damage
events. Each channel is `source + under * (255 - alpha) / 255` with premultiplied source pixels (X Rendering Extension,
operator Over).
"""

from __future__ import annotations

import numpy as np

from deskhand.desktop.local.x_connection import PointerImage


def draw_cursor(pixels: np.ndarray, image: PointerImage) -> tuple[int, int, np.ndarray] | None:
    """Draw on `pixels`, `uint32[H, W]`, in place.

    Return (left, top, covered pixels), or None if the cursor is off screen.
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
    clear = 255 - source[..., 3:]
    mixed = source + (_channels(under) * clear + 127) // 255
    mixed[..., 3] = 0
    pixels[y0:y1, x0:x1] = np.minimum(mixed, 255).astype(np.uint8).view("<u4")[..., 0]
    return x0, y0, under


def _channels(pixels: np.ndarray) -> np.ndarray:
    """`uint16[h, w, 4]`: blue, green, red, alpha."""
    height, width = pixels.shape
    return np.ascontiguousarray(pixels, "<u4").view(np.uint8).reshape(height, width, 4).astype(np.uint16)
