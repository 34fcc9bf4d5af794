"""What moves by itself: a caret, a clock, a spinner. Invariant: a tile is taken for moving only when it has changed again and again
while nobody acted, and only when few tiles do so; what grows or wanders (text that is printed, a bar that fills) reaches new tiles.

The screen is cut into tiles of `TILE` pixels. Every settle begins with an empty history of those tiles that are not known yet, so
that answers to one action after the other are never taken for motion; only after a settle that the motion itself held up to its cap
the history goes on.
"""

from __future__ import annotations

import numpy as np

TILE = 16
CHANGES = 4
SPAN_S = 0.35
"""A tile is known to move after so many changes over so long a time at least: answers to an action are mostly over by then."""
SHARE_OF_SCREEN = 1 / 40
FEWEST_TILES = 6
"""Motion of more tiles than both these is a picture that changes (a film, a list that scrolls), not a small thing that moves."""
FORGET_AFTER_S = 5.0

Box = tuple[int, int, int, int]


class AnimationFilter:
    """The moving tiles of one screen of `width` x `height` pixels.

    Its clock runs only while somebody watches: what was not watched is not forgotten.
    """

    def __init__(self, width: int, height: int) -> None:
        shape = (-(-height // TILE), -(-width // TILE))
        self._size = (width, height)
        self._most = max(FEWEST_TILES, int(shape[0] * shape[1] * SHARE_OF_SCREEN))
        self._changes = np.zeros(shape, np.int32)
        self._since_s = np.zeros(shape)
        self._last_s = np.zeros(shape)
        self._clock_s = 0.0

    def begin(self, held_up: bool) -> None:
        """A settle begins; `held_up`: the one before ended at its cap."""
        if not held_up:
            self._changes[~self._moving()] = 0

    def passed(self, duration_s: float) -> None:
        """So much time was watched since the last call."""
        self._clock_s += duration_s
        self._changes[self._clock_s - self._last_s > FORGET_AFTER_S] = 0

    def explains(self, different: np.ndarray) -> bool:
        """Take note of the pixels that changed just now, `bool[H, W]`; whether all of them lie in tiles that move by themselves."""
        changed = _tiles(different)
        self._since_s[changed & (self._changes == 0)] = self._clock_s
        self._last_s[changed] = self._clock_s
        self._changes[changed] += 1
        moving = self._moving()
        return bool(moving.any()) and not (changed & ~moving).any()

    def forget_at(self, x: int, y: int) -> None:
        """Input went to (x, y): what happens around it is an answer until it is known again."""
        row, column = y // TILE, x // TILE
        self._changes[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2] = 0

    def boxes(self) -> tuple[Box, ...]:
        """Boxes in pixels, half-open, around each group of neighbouring tiles that move."""
        left = {(int(row), int(column)) for row, column in np.argwhere(self._moving())}
        found = []
        while left:
            group, reached = [], [left.pop()]
            while reached:
                row, column = tile = reached.pop()
                group.append(tile)
                near = {(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)} & left
                left -= near
                reached += near
            rows, columns = zip(*group, strict=True)
            right, bottom = (max(columns) + 1) * TILE, (max(rows) + 1) * TILE
            found.append((min(columns) * TILE, min(rows) * TILE, min(right, self._size[0]), min(bottom, self._size[1])))
        return tuple(sorted(found))

    def _moving(self) -> np.ndarray:
        """`bool[rows, columns]`; nothing moves by itself when too much does."""
        moving = (self._changes >= CHANGES) & (self._last_s - self._since_s >= SPAN_S)
        return moving if np.count_nonzero(moving) <= self._most else np.zeros_like(moving)


def _tiles(different: np.ndarray) -> np.ndarray:
    """`bool[rows, columns]`: the tiles that hold a pixel that differs."""
    height, width = different.shape
    rows = np.logical_or.reduceat(different, np.arange(0, height, TILE), axis=0)
    return np.logical_or.reduceat(rows, np.arange(0, width, TILE), axis=1)
