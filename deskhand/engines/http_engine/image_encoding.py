"""Prepared images as PNG data URIs for servers. Used by the vLLM and SGLang protocols.

The checkpoint's preprocessing is inverted: patches are reassembled, and values that were not looked up from bytes are
denormalized. The image already has the model's size, so the server's processor (with another library's resize) does not
resize it. Encoded images are cached.

Invariant: the server receives exactly the pixels that are trained on.
"""

from __future__ import annotations

import base64
import io
import threading
from typing import Any

import numpy as np
from PIL import Image

from deskhand.errors import RecordError
from deskhand.recorder.images import LruCache
from deskhand.types import PreparedImage, StoredPixels

_FAR = 0.02
"""Maximum distance of a denormalized pixel from an integer; float32 errors are about 1e-5."""


class ImageEncoder:
    """PNG data URIs of images prepared by `processor`. Thread-safe; encoding blocks for about 10 ms."""

    def __init__(self, processor: Any, *, cache_bytes: int = 256 << 20) -> None:
        self.patch, self.merge, self.frames = processor.patch_size, processor.merge_size, processor.temporal_patch_size
        self._mean_C11 = np.asarray(processor.image_mean, dtype=np.float64).reshape(-1, 1, 1)
        self._deviation_C11 = np.asarray(processor.image_std, dtype=np.float64).reshape(-1, 1, 1)
        self._scale = float(processor.rescale_factor)
        self._cache = LruCache(cache_bytes, len)
        self._lock = threading.Lock()

    def data_uri(self, image: PreparedImage) -> str:
        """Return `data:image/png;base64,...`. Raises `RecordError` if the values are not of a preprocessed image."""
        with self._lock:
            uri = self._cache.get(image.sha256)
        if uri is not None:
            return uri
        buffer = io.BytesIO()
        Image.fromarray(self.rgb(image)).save(buffer, "PNG", compress_level=1)
        uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        with self._lock:
            self._cache.put(image.sha256, uri)
        return uri

    def rgb(self, image: PreparedImage) -> np.ndarray:
        """Return `uint8[H, W, 3]` at the model's size, from patches in the Qwen2-VL processor's order."""
        values = image.pixel_values
        if isinstance(values, StoredPixels) and values.lookup.table_CV is not None:
            levels_CV = values.lookup.table_CV.astype(np.float64) * self._deviation_C11[:, 0] + self._mean_C11[:, 0]
            if np.abs(levels_CV / self._scale - np.arange(256)).max() > _FAR:
                raise RecordError("pixels", f"image {image.sha256[:12]} was prepared by another image processor")
            return self._from_bytes(values.stored(), image.grid_thw)
        return self._from_values(image)

    def _from_bytes(self, patches_NCP: np.ndarray, grid: tuple[int, int, int]) -> np.ndarray:
        _, rows, columns = grid
        merge, patch = self.merge, self.patch
        strip = np.dtype((np.void, patch))  # one channel of a row of a patch, copied as a unit
        rgb_HWC = np.empty((rows * patch, columns * patch, patches_NCP.shape[1]), dtype=np.uint8)
        blocks = (rows // merge, columns // merge, merge, merge, patch)
        for channel in range(patches_NCP.shape[1]):
            strips = patches_NCP.view(strip)[:, channel].reshape(blocks)
            # (block row, row in block, patch row, block column, column in block)
            band = np.ascontiguousarray(strips.transpose(0, 2, 4, 1, 3))
            rgb_HWC[..., channel] = band.view(np.uint8).reshape(rgb_HWC.shape[:2])
        return rgb_HWC

    def _from_values(self, image: PreparedImage) -> np.ndarray:
        time, rows, columns = image.grid_thw
        channels = self._mean_C11.shape[0]
        blocks = (time, rows // self.merge, columns // self.merge, self.merge, self.merge)
        values = np.asarray(image.pixel_values).reshape(*blocks, channels, self.frames, self.patch, self.patch)
        # time, frame, channel, (block row, row in block, patch row), (block column, column in block, patch column)
        values = values.transpose(0, 6, 5, 1, 3, 7, 2, 4, 8)
        frames_FCHW = values.reshape(time * self.frames, channels, rows * self.patch, columns * self.patch)
        if time != 1 or any(not np.array_equal(frames_FCHW[0], frame) for frame in frames_FCHW[1:]):
            raise RecordError("pixels", f"image {image.sha256[:12]} is not one still image")
        levels_CHW = (frames_FCHW[0].astype(np.float64) * self._deviation_C11 + self._mean_C11) / self._scale
        whole_CHW = np.rint(levels_CHW)
        if np.abs(levels_CHW - whole_CHW).max() > _FAR or whole_CHW.min() < 0 or whole_CHW.max() > 255:
            raise RecordError(
                "pixels", f"image {image.sha256[:12]} is not 8-bit pixels preprocessed by this checkpoint's processor"
            )
        return whole_CHW.astype(np.uint8).transpose(1, 2, 0)
