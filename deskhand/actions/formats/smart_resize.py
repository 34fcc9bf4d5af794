"""Image size after the preprocessing of Qwen vision models (`smart_resize` of qwen-vl-utils).

Both sides are rounded to multiples of the factor and scaled together if the area is out of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.ops import Space, screen_px

MIN_PIXELS, MAX_PIXELS = 56 * 56, 16384 * 28 * 28
"""Published bounds of Qwen2.5-VL."""


def smart_resize(
    width: int, height: int, factor: int = 28, min_pixels: int = MIN_PIXELS, max_pixels: int = MAX_PIXELS
) -> tuple[int, int]:
    """Return (width, height) in pixels after resizing."""
    wide, high = (max(factor, round(side / factor) * factor) for side in (width, height))
    if wide * high > max_pixels:
        scale = math.sqrt(width * height / max_pixels)
        wide, high = (max(factor, math.floor(side / scale / factor) * factor) for side in (width, height))
    elif wide * high < min_pixels:
        scale = math.sqrt(min_pixels / (width * height))
        wide, high = (math.ceil(side * scale / factor) * factor for side in (width, height))
    return wide, high


def resized_size(view: ScreenView, min_pixels: int = MIN_PIXELS) -> Space:
    """Return the pixel space of the resized image: `view.model_image_size`, or the published computation."""
    size = view.model_image_size or smart_resize(view.image_width, view.image_height, min_pixels=min_pixels)
    return screen_px(*size)


def model_image_size(image_processor: Any) -> Callable[[int, int], tuple[int, int]]:
    """Return the function from screen size to model image size of a checkpoint's Qwen-VL image processor."""
    factor, size = image_processor.patch_size * image_processor.merge_size, image_processor.size
    return partial(smart_resize, factor=factor, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"])
