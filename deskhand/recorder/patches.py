"""A checkpoint's image processor, made faster. Invariant: values and grid are its own to the last bit, or it makes them itself.

After resizing, what these processors do to a value depends on its byte and its channel alone. Those 256 values of each channel are
asked of the processor once; pixels are then put into patches as bytes and looked up. At construction pictures are made both ways;
where one value differs (another kind of processor, other settings), the processor is used as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

Grid = tuple[int, int, int]
_CHANNELS = 3
_TRIED = ((130, 70), (64, 333), (501, 500))
"""Sizes of the pictures that are made both ways; they must be resized."""


class Patches:
    """Makes patches of one processor's pictures; thread-safe, blocking.

    `processor`: of the Qwen-VL families, with `merge_size` and a call that takes `images` and `return_tensors`.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._resized: Callable[..., tuple[int, int]] | None = getattr(inspect.getmodule(type(processor)), "smart_resize", None)
        self._table_CV: np.ndarray | None = None
        """float32[channels, 256]; None where the processor itself is used."""
        try:
            self._table_CV = self._read_table()
            if not all(self._agrees(width, height) for width, height in _TRIED):
                self._table_CV = None
        except Exception:  # whatever this processor lacks or raises, it is used as it is
            self._table_CV = None

    @property
    def fast(self) -> bool:
        """Whether patches are looked up."""
        return self._table_CV is not None

    def __call__(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        """(float32[patches, patch values], (t, h, w) in patches). Raises `ValueError` when the checkpoint cannot take that size."""
        if self._table_CV is None:
            return self._by_processor(rgb)
        bytes_NCP, grid = self._in_patches(rgb)
        frames = self._processor.temporal_patch_size
        values_NCFP = np.empty((len(bytes_NCP), _CHANNELS, frames, bytes_NCP.shape[2]), dtype=np.float32)
        for channel in range(_CHANNELS):
            values_NP = np.take(self._table_CV[channel], np.ascontiguousarray(bytes_NCP[:, channel]), mode="clip")
            for frame in range(frames):
                values_NCFP[:, channel, frame] = values_NP
        return values_NCFP.reshape(len(bytes_NCP), -1), grid

    def _by_processor(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        out = self._processor(images=[rgb], return_tensors="np")
        time, height, width = (int(n) for n in out["image_grid_thw"][0])
        return np.ascontiguousarray(out["pixel_values"], dtype=np.float32), (time, height, width)

    def _in_patches(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        """uint8[patches, channels, values of one frame] after resizing, in the processor's order, and the grid."""
        processor = self._processor
        patch, merge = processor.patch_size, processor.merge_size
        assert self._resized is not None
        height, width = self._resized(
            rgb.height,
            rgb.width,
            factor=patch * merge,
            min_pixels=processor.size["shortest_edge"],
            max_pixels=processor.size["longest_edge"],
        )
        if (width, height) != rgb.size:
            rgb = rgb.resize((width, height), resample=processor.resample)
        rows, columns = height // patch, width // patch
        blocks = np.asarray(rgb).reshape(rows // merge, merge, patch, columns // merge, merge, patch, _CHANNELS)
        # (block row, block column, row in block, column in block, channel, patch row, patch column)
        ordered = blocks.transpose(0, 3, 1, 4, 6, 2, 5)
        return ordered.reshape(rows * columns, _CHANNELS, patch * patch), (1, rows, columns)

    def _read_table(self) -> np.ndarray:
        """What the processor makes of each byte in each channel. Raises when that is not one value."""
        side = self._processor.patch_size * self._processor.merge_size
        while side * side < max(256, self._processor.size["shortest_edge"]):
            side += self._processor.patch_size * self._processor.merge_size
        levels_HW = (np.arange(side * side) % 256).astype(np.uint8).reshape(side, side)
        shown = Image.fromarray(np.stack([levels_HW] * _CHANNELS, axis=-1))
        bytes_NCP, _ = self._in_patches(shown)
        values, _ = self._by_processor(shown)
        values_NCP = values.reshape(len(bytes_NCP), _CHANNELS, -1, bytes_NCP.shape[2])[:, :, 0]
        table_CV = np.zeros((_CHANNELS, 256), dtype=np.float32)
        for channel in range(_CHANNELS):
            table_CV[channel, bytes_NCP[:, channel]] = values_NCP[:, channel]
        return table_CV

    def _agrees(self, width: int, height: int) -> bool:
        noise = np.random.default_rng([width, height]).integers(0, 256, (height, width, _CHANNELS), dtype=np.uint8)
        (ours, grid), (theirs, other) = self(Image.fromarray(noise)), self._by_processor(Image.fromarray(noise))
        return grid == other and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
