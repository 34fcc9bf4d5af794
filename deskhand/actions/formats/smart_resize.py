"""The image that a Qwen vision model sees. Invariant: an image whose sides are multiples of the factor and whose area is within the
bounds stays as it is.

From "smart_resize" of qwen-vl-utils: both sides are rounded to multiples of the factor, and scaled together when the area is
outside the bounds.
"""

from __future__ import annotations

import math

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.ops import Space, image_px

LEAST_PIXELS, MOST_PIXELS = 56 * 56, 16384 * 28 * 28
"""The bounds of Qwen2.5-VL as it is published."""


def smart_resize(
    width: int, height: int, factor: int = 28, least_pixels: int = LEAST_PIXELS, most_pixels: int = MOST_PIXELS
) -> tuple[int, int]:
    """(width, height) of the image after resizing, in pixels."""
    wide, high = (max(factor, round(side / factor) * factor) for side in (width, height))
    if wide * high > most_pixels:
        scale = math.sqrt(width * height / most_pixels)
        wide, high = (max(factor, math.floor(side / scale / factor) * factor) for side in (width, height))
    elif wide * high < least_pixels:
        scale = math.sqrt(least_pixels / (width * height))
        wide, high = (math.ceil(side * scale / factor) * factor for side in (width, height))
    return wide, high


def resized_size(view: ScreenView, least_pixels: int = LEAST_PIXELS) -> Space:
    """Pixels of the image as the model sees it: in the size that is known, or else as it is published."""
    return image_px(
        *(view.model_image_size or smart_resize(view.image_width, view.image_height, least_pixels=least_pixels))
    )
