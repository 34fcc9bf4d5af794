"""Recorded pixels as a picture that a server can take. Invariant: the server sees exactly the pixels that are trained on.

What is sent is not the screenshot but the checkpoint's own preprocessing of it turned back into a picture: patches put
together, normalisation undone. It has the size that the model sees, so a server's processor (another library's resize) has
nothing left to resize, and its patches are ours. Each picture is made once and kept, as PNG.
"""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
from PIL import Image

from deskhand.errors import RecordError
from deskhand.types import PreparedImage

_FAR = 0.02
"""Levels of 255 by which an undone pixel may miss a whole number; float32 misses by some 1e-5."""


class ImageEncoder:
    """Data URIs (PNG) of prepared images, by hash. `processor` is the checkpoint's image processor.

    `kept_bytes`: how much is kept in memory. Thread-safe; making one is blocking work of some 10 ms.
    """

    def __init__(self, processor: Any, *, kept_bytes: int = 256 << 20) -> None:
        self.patch, self.merge, self.frames = processor.patch_size, processor.merge_size, processor.temporal_patch_size
        self._mean_C11 = np.asarray(processor.image_mean, dtype=np.float64).reshape(-1, 1, 1)
        self._deviation_C11 = np.asarray(processor.image_std, dtype=np.float64).reshape(-1, 1, 1)
        self._scale = float(processor.rescale_factor)
        self._limit, self._used = kept_bytes, 0
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def data_uri(self, image: PreparedImage) -> str:
        """`data:image/png;base64,...`. Raises `RecordError` when the values are not those of a preprocessed picture."""
        with self._lock:
            if image.sha256 in self._kept:
                self._kept.move_to_end(image.sha256)
                return self._kept[image.sha256]
        buffer = io.BytesIO()
        Image.fromarray(self.rgb(image)).save(buffer, "PNG", compress_level=1)
        uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        with self._lock:
            if image.sha256 not in self._kept:
                self._kept[image.sha256] = uri
                self._used += len(uri)
            while self._used > self._limit and len(self._kept) > 1:
                self._used -= len(self._kept.popitem(last=False)[1])
        return uri

    def rgb(self, image: PreparedImage) -> np.ndarray:
        """`uint8[H, W, 3]`, H and W as the model sees them. The order of patches is that of the Qwen2-VL processor."""
        time, rows, columns = image.grid_thw
        channels = self._mean_C11.shape[0]
        blocks = (time, rows // self.merge, columns // self.merge, self.merge, self.merge)
        values = np.asarray(image.pixel_values).reshape(*blocks, channels, self.frames, self.patch, self.patch)
        # time, frame, channel, (block row, row in block, patch row), (block column, column in block, patch column)
        values = values.transpose(0, 6, 5, 1, 3, 7, 2, 4, 8)
        frames_FCHW = values.reshape(time * self.frames, channels, rows * self.patch, columns * self.patch)
        if time != 1 or any(not np.array_equal(frames_FCHW[0], frame) for frame in frames_FCHW[1:]):
            raise RecordError("pixels", f"image {image.sha256[:12]} is not one still picture")
        levels_CHW = (frames_FCHW[0].astype(np.float64) * self._deviation_C11 + self._mean_C11) / self._scale
        whole_CHW = np.rint(levels_CHW)
        if np.abs(levels_CHW - whole_CHW).max() > _FAR or whole_CHW.min() < 0 or whole_CHW.max() > 255:
            raise RecordError(
                "pixels",
                f"image {image.sha256[:12]} does not come from 8-bit pixels by this processor; use the checkpoint's own",
            )
        return whole_CHW.astype(np.uint8).transpose(1, 2, 0)
