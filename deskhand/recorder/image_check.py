"""Self-test of image preprocessing against the checkpoint's own processor.

Used by `recipes.training_loop` at the start. Engine and trainer share one preprocessing, so a fault in it (swapped
color channels, another resizing) makes them agree on wrong images. The reference here reads the pixels from an array,
not through the decoder of `recorder.images`.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from deskhand.errors import HealthError
from deskhand.recorder.images import ImageCache

_SIZES = ((96, 64), (333, 150))
"""(width, height) of the test images; the second one is resized."""
_TOLERANCE = 1e-4


def check_preprocessing(images: ImageCache, processor: Any) -> None:
    """Compare prepared images with those of `processor`, freshly loaded from the checkpoint.

    Raises `HealthError` if pixels differ, and says so if the color channels are swapped.
    """
    own = ImageCache(images.processor)
    for width, height in _SIZES:
        pixels = _test_image(width, height)
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, "PNG")
        prepared = own.add(encoded.getvalue())
        found = np.asarray(prepared.pixel_values)
        expected, grid = _reference(processor, pixels)
        if found.shape == expected.shape and np.allclose(found, expected, atol=_TOLERANCE):
            continue
        swapped, _ = _reference(processor, pixels[..., ::-1])
        is_swapped = found.shape == swapped.shape and np.allclose(found, swapped, atol=_TOLERANCE)
        what = (
            "red and blue are swapped" if is_swapped else f"grid {prepared.grid_thw} instead of {grid}, or other values"
        )
        raise HealthError(
            f"invariant image_preprocessing: a {width}x{height} image is not prepared as by the checkpoint's own "
            f"processor ({what}); reinstall deskhand and transformers, or report it"
        )


def _test_image(width: int, height: int) -> np.ndarray:
    """Return uint8[height, width, 3] with a different gradient in each channel and a colored block."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 // width, y * 255 // height, np.full_like(x, 40)], axis=-1).astype(np.uint8)
    pixels[: height // 3, : width // 3] = (220, 30, 10)
    return pixels


def _reference(processor: Any, pixels: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    done = processor(images=[np.ascontiguousarray(pixels)], return_tensors="np")
    return np.asarray(done["pixel_values"], np.float32), tuple(int(side) for side in done["image_grid_thw"][0])
