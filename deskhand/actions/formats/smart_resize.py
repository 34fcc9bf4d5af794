"""Image size after the preprocessing of Qwen vision models (`smart_resize` of qwen-vl-utils).

Both sides are rounded to multiples of the factor and scaled together if the area is out of bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.ops import Space, screen_px
from deskhand.errors import ConfigError

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


def resized_size(view: ScreenView, min_pixels: int = MIN_PIXELS, max_pixels: int = MAX_PIXELS) -> Space:
    """Return the pixel space of the resized image: `view.model_image_size`, or the published computation."""
    size = view.model_image_size or smart_resize(
        view.image_width, view.image_height, min_pixels=min_pixels, max_pixels=max_pixels
    )
    return screen_px(*size)


@dataclass(frozen=True)
class ModelImageSize:
    """The function from screen size to model image size under a checkpoint's bounds; by default the published ones."""

    factor: int = 28
    min_pixels: int = MIN_PIXELS
    max_pixels: int = MAX_PIXELS

    def __call__(self, width: int, height: int, max_pixels: int | None = None) -> tuple[int, int]:
        """Return (width, height) in pixels. `max_pixels` lowers the maximum area.

        Raises `ConfigError` if it is so low that an image of this area could be enlarged again.
        """
        if max_pixels is not None and max_pixels < 2 * self.min_pixels:
            raise ConfigError(
                f"agent.max_pixels: must be at least {2 * self.min_pixels} for this model, twice the minimum of its "
                f"preprocessor_config.json, got {max_pixels}"
            )
        most = self.max_pixels if max_pixels is None else min(self.max_pixels, max_pixels)
        return smart_resize(width, height, self.factor, self.min_pixels, most)


def model_image_size(image_processor: Any) -> ModelImageSize:
    """Return the function from screen size to model image size of a checkpoint's Qwen-VL image processor."""
    size = image_processor.size
    return ModelImageSize(
        image_processor.patch_size * image_processor.merge_size, size["shortest_edge"], size["longest_edge"]
    )
