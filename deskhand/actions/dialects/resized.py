"""The size to which Qwen2-VL and Qwen2.5-VL resize an image before they look at it. Invariant: a size that is given out is given
out again for itself, so an image that was resized already keeps its size.

The rule is that of `smart_resize` in Qwen's `qwen_vl_utils/vision_process.py`: both sides are multiples of `factor`, and the area
lies within the bounds.
"""

from __future__ import annotations

import math


def smart_resize(width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(width, height) in pixels of the resized image."""
    across, down = max(factor, round(width / factor) * factor), max(factor, round(height / factor) * factor)
    if across * down > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        across = max(factor, math.floor(width / shrink / factor) * factor)
        down = max(factor, math.floor(height / shrink / factor) * factor)
    elif across * down < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        across, down = math.ceil(width * grow / factor) * factor, math.ceil(height * grow / factor) * factor
    return across, down
