"""Faster replacement for a checkpoint's image processor, with identical values. Used by `recorder.images`.

After resizing, Qwen-VL processors map each byte of a channel to a value, independent of its position. The 256 values of
each channel are read from the processor once; pixels are stored in patches as bytes (an eighth of the size) and looked
up on access. At construction both paths are compared on sample images; if any value differs (another kind of processor,
other settings), the processor itself is used.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from deskhand.types import Checksum

Grid = tuple[int, int, int]
_CHANNELS = 3
_SAMPLE_SIZES = ((130, 70), (64, 333), (501, 500))
"""Sizes of the compared images; all of them are resized."""
_CHUNK = 128
"""Patches looked up at once, so that intermediate arrays stay in the CPU cache."""


@dataclass(frozen=True, slots=True)
class PatchLookup:
    """Converts stored patches to values. Picklable, for processes without the processor's library.

    `table_CV`: float32[channels, 256], or None if the stored patches are the processor's values.
    `frames`: number of copies of the frame in a patch.
    """

    table_CV: np.ndarray | None
    frames: int

    def shape(self, patches: np.ndarray) -> tuple[int, int]:
        """Return the shape of the values of stored patches."""
        if self.table_CV is None:
            return patches.shape[0], patches.shape[1]
        return patches.shape[1], _CHANNELS * self.frames * patches.shape[2]

    def values(self, patches: np.ndarray) -> np.ndarray:
        """Return float32[patches, patch values] of stored patches."""
        if self.table_CV is None:
            return patches
        channels, count, size = patches.shape
        values_NCFP = np.empty((count, channels, self.frames, size), dtype=np.float32)
        for start in range(0, count, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            for channel in range(channels):
                table = self.table_CV[channel]
                values_NCFP[chunk, channel] = np.take(table, patches[channel, chunk], mode="clip")[:, None]
        return values_NCFP.reshape(count, -1)


class PatchExtractor:
    """Extracts patches of images like a Qwen-VL `processor`; thread-safe, blocking."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._smart_resize: Callable[..., tuple[int, int]] | None = getattr(
            inspect.getmodule(type(processor)), "smart_resize", None
        )
        with contextlib.suppress(Exception):  # an unsupported processor is used as it is
            self.lookup = PatchLookup(self._read_table(), processor.temporal_patch_size)
            if all(self._matches(width, height) for width, height in _SAMPLE_SIZES):
                return
        self.lookup = PatchLookup(None, 1)

    @property
    def fast(self) -> bool:
        """Whether values are looked up."""
        return self.lookup.table_CV is not None

    def extract(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        """Return (patches for `lookup`, (t, h, w) in patches). Raises `ValueError` for an unsupported size. The patches
        are uint8[channels, patches, values of one frame], or the processor's values if it is used itself."""
        return self._in_patches(rgb) if self.fast else self._by_processor(rgb)

    def _by_processor(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        out = self._processor(images=[rgb], return_tensors="np")
        time, height, width = (int(n) for n in out["image_grid_thw"][0])
        return np.ascontiguousarray(out["pixel_values"], dtype=np.float32), (time, height, width)

    def _in_patches(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        processor = self._processor
        patch, merge = processor.patch_size, processor.merge_size
        assert self._smart_resize is not None
        height, width = self._smart_resize(
            rgb.height,
            rgb.width,
            factor=patch * merge,
            min_pixels=processor.size["shortest_edge"],
            max_pixels=processor.size["longest_edge"],
        )
        if (width, height) != rgb.size:
            rgb = rgb.resize((width, height), resample=processor.resample)
        rows, columns = height // patch, width // patch
        strip = np.dtype((np.void, patch))  # one channel of a row of a patch, copied as a unit
        patches_CNP = np.empty((_CHANNELS, rows * columns, patch * patch), dtype=np.uint8)
        for channel, band in enumerate(rgb.split()):
            strips = (
                np.ascontiguousarray(band).view(strip).reshape(rows // merge, merge, patch, columns // merge, merge)
            )
            # (block row, block column, row in block, column in block, patch row)
            ordered = strips.transpose(0, 3, 1, 4, 2)
            patches_CNP[channel].view(strip).reshape(ordered.shape)[...] = ordered
        return patches_CNP, (1, rows, columns)

    def _read_table(self) -> np.ndarray:
        """Return the processor's value of each byte in each channel."""
        side = self._processor.patch_size * self._processor.merge_size
        while side * side < max(256, self._processor.size["shortest_edge"]):
            side += self._processor.patch_size * self._processor.merge_size
        levels_HW = (np.arange(side * side) % 256).astype(np.uint8).reshape(side, side)
        shown = Image.fromarray(np.stack([levels_HW] * _CHANNELS, axis=-1))
        bytes_CNP, _ = self._in_patches(shown)
        values, _ = self._by_processor(shown)
        values_NCP = values.reshape(bytes_CNP.shape[1], _CHANNELS, -1, bytes_CNP.shape[2])[:, :, 0]
        table_CV = np.zeros((_CHANNELS, 256), dtype=np.float32)
        for channel in range(_CHANNELS):
            table_CV[channel, bytes_CNP[channel]] = values_NCP[:, channel]
        return table_CV

    def _matches(self, width: int, height: int) -> bool:
        noise = np.random.default_rng([width, height]).integers(0, 256, (height, width, _CHANNELS), dtype=np.uint8)
        image = Image.fromarray(noise)
        (patches, grid), (expected, expected_grid) = self.extract(image), self._by_processor(image)
        values = self.lookup.values(patches)
        return grid == expected_grid and values.shape == expected.shape and values.tobytes() == expected.tobytes()


class StoredPatches:
    """An image's stored patches; `numpy.asarray` computes their float32 values and records `checksum`. `nbytes` is the
    stored size."""

    def __init__(self, lookup: PatchLookup, patches: np.ndarray, checksum: Checksum) -> None:
        self._lookup, self._patches, self._checksum = lookup, patches, checksum
        self.shape, self.nbytes = lookup.shape(patches), patches.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self._lookup.values(self._patches)
        self._checksum.record(values)
        return np.array(values, dtype=dtype, copy=copy)
