"""Faster replacement for a checkpoint's image processor, with identical values. Used by `recorder.images`.

After resizing, Qwen-VL processors map each byte of a channel to a value, independent of its position. The 256 values of
each channel are read from the processor once; pixels are stored in patches as bytes (an eighth of the size) and looked
up on access. An image is resized and cut into patches when an engine or a trainer first asks for them. At construction
both paths are compared on sample images; if any value differs (another kind of processor, other settings), the
processor itself is used, at once.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from deskhand.types import Checksum, PatchLookup

Grid = tuple[int, int, int]
_CHANNELS = 3
_PACKED = 4
"""Channels of a CMYK image."""
_SAMPLE_SIZES = ((130, 70), (64, 333), (501, 500))
"""Sizes (width, height) of the compared images; all of them are resized."""


class PatchExtractor:
    """Extracts patches of images like a Qwen-VL `processor`; thread-safe, blocking."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._smart_resize: Callable[..., tuple[int, int]] | None = getattr(
            inspect.getmodule(type(processor)), "smart_resize", None
        )
        with contextlib.suppress(Exception):  # an unsupported processor is used as it is
            self.lookup = PatchLookup(self._read_table(), processor.temporal_patch_size)
            if all(self._matches(width, height) for width, height in (*_SAMPLE_SIZES, self._size_with_kept_width())):
                return
        self.lookup = PatchLookup(None, 1)

    @property
    def fast(self) -> bool:
        """Whether values are looked up."""
        return self.lookup.table_CV is not None

    def prepare(self, rgb_HWC: np.ndarray, checksum: Checksum) -> tuple[StoredPatches, Grid]:
        """Return the patches of `uint8[H, W, 3]`, extracted at first use, and the grid (t, h, w) in patches.

        Raises `ValueError` for an unsupported size.
        """
        if not self.fast:
            patches, grid = self.extract(rgb_HWC)
            return StoredPatches(self.lookup, patches, checksum), grid
        height, width = self._resized(rgb_HWC.shape[1], rgb_HWC.shape[0])
        patch = self._processor.patch_size
        grid = (1, height // patch, width // patch)
        shape = (grid[1] * grid[2], _CHANNELS * self.lookup.frames * patch**2)
        held = max(rgb_HWC.nbytes, _CHANNELS * height * width)

        def make() -> np.ndarray:
            return self.extract(rgb_HWC)[0]

        return StoredPatches(self.lookup, None, checksum, make=make, shape=shape, nbytes=held), grid

    def extract(self, rgb_HWC: np.ndarray) -> tuple[np.ndarray, Grid]:
        """Return (patches for `lookup`, (t, h, w) in patches) of `uint8[H, W, 3]`. Raises `ValueError` for an
        unsupported size. The patches are uint8[patches, channels, values of one frame], or the processor's values if it
        is used itself."""
        return self._in_patches(rgb_HWC) if self.fast else self._by_processor(rgb_HWC)

    def _by_processor(self, rgb_HWC: np.ndarray) -> tuple[np.ndarray, Grid]:
        out = self._processor(images=[Image.fromarray(rgb_HWC)], return_tensors="np")
        time, height, width = (int(n) for n in out["image_grid_thw"][0])
        return np.ascontiguousarray(out["pixel_values"], dtype=np.float32), (time, height, width)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """Return (height, width) after resizing. Raises `ValueError` for an unsupported size."""
        processor = self._processor
        assert self._smart_resize is not None
        return self._smart_resize(
            height,
            width,
            factor=processor.patch_size * processor.merge_size,
            min_pixels=processor.size["shortest_edge"],
            max_pixels=processor.size["longest_edge"],
        )

    def _in_patches(self, rgb_HWC: np.ndarray) -> tuple[np.ndarray, Grid]:
        processor = self._processor
        patch, merge = processor.patch_size, processor.merge_size
        height, width = self._resized(rgb_HWC.shape[1], rgb_HWC.shape[0])
        rgb_HWC = _resize(rgb_HWC, width, height, processor.resample)
        rows, columns = height // patch, width // patch
        pixels = rgb_HWC.reshape(rows // merge, merge, patch, columns // merge, merge, patch, _CHANNELS)
        patches_NCP = np.empty((rows * columns, _CHANNELS, patch * patch), dtype=np.uint8)
        # (block row, block column, row in block, column in block, channel, patch row, patch column)
        blocks = (rows // merge, columns // merge, merge, merge, _CHANNELS, patch, patch)
        patches_NCP.reshape(blocks)[...] = pixels.transpose(0, 3, 1, 4, 6, 2, 5)
        return patches_NCP, (1, rows, columns)

    def _read_table(self) -> np.ndarray:
        """Return the processor's value of each byte in each channel."""
        side = self._processor.patch_size * self._processor.merge_size
        while side * side < max(256, self._processor.size["shortest_edge"]):
            side += self._processor.patch_size * self._processor.merge_size
        levels_HW = (np.arange(side * side) % 256).astype(np.uint8).reshape(side, side)
        shown = np.stack([levels_HW] * _CHANNELS, axis=-1)
        bytes_NCP, _ = self._in_patches(shown)
        values, _ = self._by_processor(shown)
        values_NCP = values.reshape(len(bytes_NCP), _CHANNELS, -1, bytes_NCP.shape[2])[:, :, 0]
        table_CV = np.zeros((_CHANNELS, 256), dtype=np.float32)
        for channel in range(_CHANNELS):
            table_CV[channel, bytes_NCP[:, channel]] = values_NCP[:, channel]
        return table_CV

    def _size_with_kept_width(self) -> tuple[int, int]:
        """Return (width, height) of an image of which only the rows are resized, as of a screenshot of 1280x720."""
        factor = self._processor.patch_size * self._processor.merge_size
        width = _PACKED * factor
        while width * width < self._processor.size["shortest_edge"]:
            width += _PACKED * factor
        return width, width + factor // 3

    def _matches(self, width: int, height: int) -> bool:
        noise = np.random.default_rng([width, height]).integers(0, 256, (height, width, _CHANNELS), dtype=np.uint8)
        (patches, grid), (expected, expected_grid) = self.extract(noise), self._by_processor(noise)
        values = self.lookup.values(patches)
        return grid == expected_grid and values.shape == expected.shape and values.tobytes() == expected.tobytes()


def _resize(rgb_HWC: np.ndarray, width: int, height: int, resample: int) -> np.ndarray:
    """Return what Pillow's `resize` of an RGB image returns."""
    if rgb_HWC.shape[1] == width and rgb_HWC.shape[0] == height:
        return rgb_HWC
    if rgb_HWC.shape[1] == width and width % _PACKED == 0:
        # Each column of bytes is resized for itself. In an image of four channels Pillow reads and writes the bytes as
        # they are, three pixels after four; RGB pixels would be copied to four bytes each, with an unused one.
        columns = width * _CHANNELS // _PACKED
        packed = Image.frombuffer(
            "CMYK", (columns, rgb_HWC.shape[0]), np.ascontiguousarray(rgb_HWC), "raw", "CMYK", 0, 1
        )
        resized = packed.resize((columns, height), resample=resample)
    else:
        resized = Image.fromarray(rgb_HWC).resize((width, height), resample=resample)
    return np.frombuffer(resized.tobytes(), np.uint8).reshape(height, width, _CHANNELS)


class StoredPatches:
    """An image's stored patches (`types.StoredPixels`); `numpy.asarray` computes their float32 values. Thread-safe.

    `checksum` records the patches when they exist. Without `patches`, `make` extracts them at first use; `shape` is
    that of the values, `nbytes` the most that is held.
    """

    def __init__(
        self,
        lookup: PatchLookup,
        patches: np.ndarray | None,
        checksum: Checksum,
        *,
        make: Callable[[], np.ndarray] | None = None,
        shape: tuple[int, int] = (0, 0),
        nbytes: int = 0,
    ) -> None:
        self.lookup, self.checksum = lookup, checksum
        self._patches, self._make, self._lock = patches, make, threading.Lock()
        self.shape = shape if patches is None else lookup.shape(patches)
        self.nbytes = nbytes if patches is None else patches.nbytes

    def stored(self) -> np.ndarray:
        """Return the patches for `lookup`; the first call extracts them."""
        with self._lock:
            if self._patches is None:
                assert self._make is not None
                self._patches, self._make = self._make(), None
            self.checksum.record(self._patches)
            return self._patches

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.lookup.values(self.stored()), dtype=dtype, copy=copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredPatches, (self.lookup, self.stored(), self.checksum)
