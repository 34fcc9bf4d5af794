"""What differs between two screens, in tiles. Invariant: `pasted(before, *cut(before, after))` is `after`, to the pixel."""

from __future__ import annotations

import numpy as np

TILE = 16
"""Pixels of a side; those at the right and lower edge may be smaller."""


def encode_delta(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, bytes]:
    """The tiles of `after` that differ from `before`, both `uint8[H, W, 3]`: `bool[rows, columns]`, and their pixels one by one."""
    height, width, _ = after.shape
    different = before.reshape(height, 3 * width) != after.reshape(height, 3 * width)
    changed = np.zeros(grid(width, height), bool)
    for row in np.unique(np.flatnonzero(different.any(axis=1)) // TILE):
        columns = different[row * TILE : (row + 1) * TILE].any(axis=0)
        changed[row] = np.logical_or.reduceat(columns, np.arange(0, 3 * width, 3 * TILE))
    return changed, b"".join(after[place].tobytes() for place in _places(changed))


def apply_delta(before: np.ndarray, changed: np.ndarray, pixels: bytes) -> np.ndarray:
    """`before` with these tiles in it. Raises `ValueError` when the pixels are not those of the tiles."""
    after, at = before.copy(), 0
    for place in _places(changed):
        shape = after[place].shape
        size = shape[0] * shape[1] * 3
        after[place] = np.frombuffer(pixels[at : at + size], np.uint8).reshape(shape)
        at += size
    if at != len(pixels):
        raise ValueError(f"{len(pixels)} bytes of tiles that have {at}")
    return after


def grid(width: int, height: int) -> tuple[int, int]:
    """(rows, columns) of the tiles of a screen."""
    return -(-height // TILE), -(-width // TILE)


def _places(changed: np.ndarray) -> list[tuple[slice, slice]]:
    corners = ((TILE * int(row), TILE * int(column)) for row, column in np.argwhere(changed))
    return [(slice(top, top + TILE), slice(left, left + TILE)) for top, left in corners]
