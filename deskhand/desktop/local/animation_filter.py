"""Animation filter: screen tiles that change by themselves (a caret, a clock, a spinner).

Used by `settle`. The screen is cut into tiles of `TILE` pixels. A tile is animated if it changed repeatedly without
input and only few tiles do so. Content that grows or wanders (printed text, a progress bar) reaches new tiles and is
not animation. The history of tiles that are not yet known to be animated is cleared at each settle, so that responses
to consecutive actions do not count. It is kept only after a settle that timed out.
"""

from __future__ import annotations

import numpy as np

TILE = 16
MIN_CHANGES = 4
MIN_SPAN_S = 0.35
"""Minimum time from the first to the last of `MIN_CHANGES`: responses to an action are mostly over by then."""
MAX_SCREEN_FRACTION = 1 / 40
MIN_TILE_LIMIT = 6
"""More animated tiles than both limits mean changing content (a film, a scrolling list), not an animation."""
FORGET_AFTER_S = 5.0

BBox = tuple[int, int, int, int]


class AnimationFilter:
    """Animated tiles of one screen of `width` x `height` pixels.

    The clock advances only during settles: unobserved time does not age the history.
    """

    def __init__(self, width: int, height: int) -> None:
        shape = (-(-height // TILE), -(-width // TILE))
        self._size = (width, height)
        self._max_tiles = max(MIN_TILE_LIMIT, int(shape[0] * shape[1] * MAX_SCREEN_FRACTION))
        self._changes = np.zeros(shape, np.int32)
        self._since_s = np.zeros(shape)
        self._last_s = np.zeros(shape)
        self._clock_s = 0.0

    def start_settle(self, timed_out: bool) -> None:
        """Start a settle; `timed_out` says whether the previous one ended at its time limit."""
        if not timed_out:
            self._changes[~self._moving()] = 0

    def advance(self, duration_s: float) -> None:
        """Add observed time since the last call."""
        self._clock_s += duration_s
        self._changes[self._clock_s - self._last_s > FORGET_AFTER_S] = 0

    def is_animation(self, different: np.ndarray) -> bool:
        """Record the pixels that just changed, `bool[H, W]`; return whether all of them are in animated tiles."""
        changed = _tiles(different)
        self._since_s[changed & (self._changes == 0)] = self._clock_s
        self._last_s[changed] = self._clock_s
        self._changes[changed] += 1
        moving = self._moving()
        return bool(moving.any()) and not (changed & ~moving).any()

    def reset_at(self, x: int, y: int) -> None:
        """Clear the history around (x, y), where input was sent."""
        row, column = y // TILE, x // TILE
        self._changes[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2] = 0

    def boxes(self) -> tuple[BBox, ...]:
        """Return half-open pixel boxes around each group of adjacent animated tiles."""
        remaining = {(int(row), int(column)) for row, column in np.argwhere(self._moving())}
        found = []
        while remaining:
            group, frontier = [], [remaining.pop()]
            while frontier:
                row, column = tile = frontier.pop()
                group.append(tile)
                near = {(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)} & remaining
                remaining -= near
                frontier += near
            rows, columns = zip(*group, strict=True)
            right, bottom = (max(columns) + 1) * TILE, (max(rows) + 1) * TILE
            found.append((min(columns) * TILE, min(rows) * TILE, min(right, self._size[0]), min(bottom, self._size[1])))
        return tuple(sorted(found))

    def _moving(self) -> np.ndarray:
        """`bool[rows, columns]`; all False if too many tiles are animated."""
        moving = (self._changes >= MIN_CHANGES) & (self._last_s - self._since_s >= MIN_SPAN_S)
        return moving if np.count_nonzero(moving) <= self._max_tiles else np.zeros_like(moving)


def _tiles(different: np.ndarray) -> np.ndarray:
    """`bool[rows, columns]`: tiles with a changed pixel."""
    height, width = different.shape
    rows = np.logical_or.reduceat(different, np.arange(0, height, TILE), axis=0)
    return np.logical_or.reduceat(rows, np.arange(0, width, TILE), axis=1)
