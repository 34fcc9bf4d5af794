"""A checkpoint's image processor, made faster. Invariant: values and grid are its own to the last bit, or it makes them itself.

After resizing, what these processors do to a value depends on its byte and its channel alone. Those 256 values of each channel are
asked of the processor once; pixels are then put into patches as bytes, an eighth of what their values take, and looked up when
somebody asks for the values. At construction pictures are made both ways; where one value differs (another kind of processor,
other settings), the processor is used as it is and its values are kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from deskhand.types import Checksum

Grid = tuple[int, int, int]
_CHANNELS = 3
_TRIED = ((130, 70), (64, 333), (501, 500))
"""Sizes of the pictures that are made both ways; they must be resized."""
_AT_ONCE = 128
"""Patches that are looked up at once, so that what is made on the way stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class PatchLookup:
    """What makes values of what is kept. Plain numbers: it goes to other processes, whose libraries may lack the processor.

    `table_CV`: float32[channels, 256]; None where the processor itself made the values, which are then what is kept.
    `frames`: how often a picture's one frame stands in a patch.
    """

    table_CV: np.ndarray | None
    frames: int

    def shape(self, kept: np.ndarray) -> tuple[int, int]:
        """The shape of the values of what was kept."""
        if self.table_CV is None:
            return kept.shape[0], kept.shape[1]
        return kept.shape[1], _CHANNELS * self.frames * kept.shape[2]

    def values(self, kept: np.ndarray) -> np.ndarray:
        """float32[patches, patch values] of what was kept."""
        if self.table_CV is None:
            return kept
        channels, count, size = kept.shape
        values_NCFP = np.empty((count, channels, self.frames, size), dtype=np.float32)
        for start in range(0, count, _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            for channel in range(channels):
                values_NCFP[some, channel] = np.take(self.table_CV[channel], kept[channel, some], mode="clip")[:, None]
        return values_NCFP.reshape(count, -1)


class PatchExtractor:
    """Makes patches of one processor's pictures; thread-safe, blocking.

    `processor`: of the Qwen-VL families, with `merge_size` and a call that takes `images` and `return_tensors`.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._resized: Callable[..., tuple[int, int]] | None = getattr(
            inspect.getmodule(type(processor)), "smart_resize", None
        )
        self.lookup = PatchLookup(None, 1)
        try:
            self.lookup = PatchLookup(self._read_table(), processor.temporal_patch_size)
            if not all(self._agrees(width, height) for width, height in _TRIED):
                self.lookup = PatchLookup(None, 1)
        except Exception:  # whatever this processor lacks or raises, it is used as it is
            self.lookup = PatchLookup(None, 1)

    @property
    def fast(self) -> bool:
        """Whether patches are looked up."""
        return self.lookup.table_CV is not None

    def keep(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        """(what `lookup` takes, (t, h, w) in patches). Raises `ValueError` for a size that the checkpoint cannot take.

        It is uint8[channels, patches, values of one frame], or where the processor itself is used the values.
        """
        return self._in_patches(rgb) if self.fast else self._by_processor(rgb)

    def _by_processor(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        out = self._processor(images=[rgb], return_tensors="np")
        time, height, width = (int(n) for n in out["image_grid_thw"][0])
        return np.ascontiguousarray(out["pixel_values"], dtype=np.float32), (time, height, width)

    def _in_patches(self, rgb: Image.Image) -> tuple[np.ndarray, Grid]:
        """uint8[channels, patches, values of one frame] after resizing, in the processor's order, and the grid."""
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
        strip = np.dtype((np.void, patch))  # a patch's row of one channel, moved as a whole
        kept_CNP = np.empty((_CHANNELS, rows * columns, patch * patch), dtype=np.uint8)
        for channel, band in enumerate(rgb.split()):
            strips = (
                np.ascontiguousarray(band).view(strip).reshape(rows // merge, merge, patch, columns // merge, merge)
            )
            # (block row, block column, row in block, column in block, patch row)
            ordered = strips.transpose(0, 3, 1, 4, 2)
            kept_CNP[channel].view(strip).reshape(ordered.shape)[...] = ordered
        return kept_CNP, (1, rows, columns)

    def _read_table(self) -> np.ndarray:
        """What the processor makes of each byte in each channel. Raises when that is not one value."""
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

    def _agrees(self, width: int, height: int) -> bool:
        noise = np.random.default_rng([width, height]).integers(0, 256, (height, width, _CHANNELS), dtype=np.uint8)
        (kept, grid), (theirs, other) = self.keep(Image.fromarray(noise)), self._by_processor(Image.fromarray(noise))
        ours = self.lookup.values(kept)
        return grid == other and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


class StoredPatches:
    """A picture's patches as they are kept; `numpy.asarray` makes their values, float32 of `shape`, and the first are noted in
    `checksum`.

    `nbytes`: of what is kept.
    """

    def __init__(self, lookup: PatchLookup, kept: np.ndarray, checksum: Checksum) -> None:
        self._lookup, self._kept, self._checksum = lookup, kept, checksum
        self.shape, self.nbytes = lookup.shape(kept), kept.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self._lookup.values(self._kept)
        self._checksum.note(values)
        return np.array(values, dtype=dtype, copy=copy)
