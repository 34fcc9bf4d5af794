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
_SAMPLE_SIZES = ((130, 70), (64, 333), (501, 500))
"""Sizes of the compared images; all of them are resized."""


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

    def prepare(self, rgb_HWC: np.ndarray, checksum: Checksum) -> tuple[StoredPatches, Grid]:
        """Return the patches of `uint8[H, W, 3]`, extracted at first use, and the grid (t, h, w) in patches.

        Raises `ValueError` for an unsupported size.
        """
        if not self.fast:
            patches, grid = self.extract(Image.fromarray(rgb_HWC))
            return StoredPatches(self.lookup, patches, checksum), grid
        height, width = self._resized(rgb_HWC.shape[1], rgb_HWC.shape[0])
        patch = self._processor.patch_size
        grid = (1, height // patch, width // patch)
        shape = (grid[1] * grid[2], _CHANNELS * self.lookup.frames * patch**2)
        held = max(rgb_HWC.nbytes, _CHANNELS * height * width)

        def make() -> np.ndarray:
            return self.extract(Image.fromarray(rgb_HWC))[0]

        return StoredPatches(self.lookup, None, checksum, make=make, shape=shape, nbytes=held), grid

    def extract(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        """Return (patches for `lookup`, (t, h, w) in patches). Raises `ValueError` for an unsupported size. The patches
        are uint8[patches, channels, values of one frame], or the processor's values if it is used itself."""
        return self._in_patches(rgb) if self.fast else self._by_processor(rgb)

    def _by_processor(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        out = self._processor(images=[rgb], return_tensors="np")
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

    def _in_patches(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        processor = self._processor
        patch, merge = processor.patch_size, processor.merge_size
        height, width = self._resized(rgb.width, rgb.height)
        if (width, height) != rgb.size:
            rgb = rgb.resize((width, height), resample=processor.resample)
        rows, columns = height // patch, width // patch
        strip = np.dtype((np.void, patch))  # one channel of a row of a patch, copied as a unit
        patches_NCP = np.empty((rows * columns, _CHANNELS, patch * patch), dtype=np.uint8)
        blocks = (rows // merge, columns // merge, merge, merge, patch)
        for channel, band in enumerate(rgb.split()):
            strips = (
                np.ascontiguousarray(band).view(strip).reshape(rows // merge, merge, patch, columns // merge, merge)
            )
            # (block row, block column, row in block, column in block, patch row)
            patches_NCP.view(strip)[:, channel].reshape(blocks)[...] = strips.transpose(0, 3, 1, 4, 2)
        return patches_NCP, (1, rows, columns)

    def _read_table(self) -> np.ndarray:
        """Return the processor's value of each byte in each channel."""
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

    def _matches(self, width: int, height: int) -> bool:
        noise = np.random.default_rng([width, height]).integers(0, 256, (height, width, _CHANNELS), dtype=np.uint8)
        image = Image.fromarray(noise)
        (patches, grid), (expected, expected_grid) = self.extract(image), self._by_processor(image)
        values = self.lookup.values(patches)
        return grid == expected_grid and values.shape == expected.shape and values.tobytes() == expected.tobytes()


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
