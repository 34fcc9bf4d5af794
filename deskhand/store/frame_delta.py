"""Lossless difference of two screenshots, in tiles.

Used by `store.frames` and by the desktop servers' frame protocol.

Invariant: `apply_delta(before, *encode_delta(before, after))` equals `after`.
"""

from __future__ import annotations

import numpy as np

TILE = 16
"""Side of a tile in pixels; tiles at the right and lower edge may be smaller."""


def encode_delta(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, bytes]:
    """Return the tiles of `after` that differ from `before` (both `uint8[H, W, 3]`) and their concatenated pixels.

    The tiles are a mask `bool[rows, columns]`.
    """
    height, width, _ = after.shape
    different = before.reshape(height, 3 * width) != after.reshape(height, 3 * width)
    changed = np.zeros(grid(width, height), bool)
    for row in np.unique(np.flatnonzero(different.any(axis=1)) // TILE):
        columns = different[row * TILE : (row + 1) * TILE].any(axis=0)
        changed[row] = np.logical_or.reduceat(columns, np.arange(0, 3 * width, 3 * TILE))
    return changed, b"".join(after[tile].tobytes() for tile in _tiles(changed))


def apply_delta(before: np.ndarray, changed: np.ndarray, pixels: bytes) -> np.ndarray:
    """Return `before` with the changed tiles replaced. Raises `ValueError` if the pixels do not match the tiles."""
    after, offset = before.copy(), 0
    for tile in _tiles(changed):
        shape = after[tile].shape
        size = shape[0] * shape[1] * 3
        after[tile] = np.frombuffer(pixels[offset : offset + size], np.uint8).reshape(shape)
        offset += size
    if offset != len(pixels):
        raise ValueError(f"expected {offset} bytes of tile pixels, got {len(pixels)}")
    return after


def grid(width: int, height: int) -> tuple[int, int]:
    """Return (rows, columns) of the tiles of a screenshot."""
    return -(-height // TILE), -(-width // TILE)


def _tiles(changed: np.ndarray) -> list[tuple[slice, slice]]:
    corners = ((TILE * int(row), TILE * int(column)) for row, column in np.argwhere(changed))
    return [(slice(top, top + TILE), slice(left, left + TILE)) for top, left in corners]
