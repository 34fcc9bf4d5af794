"""Whether an agent is stuck: consecutive actions that leave the screen as it was. Used by `RLEnvironment`.

Three things are no evidence of either: a step that only waits or looks, what the frame says moves by itself (a spinner,
a clock), and a return to the screen before the last (a caret that blinks slower than a screen settles).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deskhand.actions.ops import PASSIVE_OPS, Op
from deskhand.desktop.base import Frame

Box = tuple[int, int, int, int]


class StuckDetector:
    """Counts the consecutive acting steps without an effect on the screen, from the frame before the first step."""

    def __init__(self, first: Frame) -> None:
        self.unchanged = 0
        self._screens = [first]
        """The last two screens that differ, newest first."""
        self._moving: set[Box] = set(first.moving)

    def after_step(self, ops: Sequence[Op], frame: Frame) -> int:
        """Return the number of consecutive acting steps without an effect, after a step with `ops`."""
        self._moving.update(frame.moving)
        if not any(self._is_same(screen, frame) for screen in self._screens):
            self._screens, self._moving, self.unchanged = [frame, self._screens[0]], set(frame.moving), 0
        elif not all(isinstance(op, PASSIVE_OPS) for op in ops):
            self.unchanged += 1
        return self.unchanged

    def _is_same(self, before: Frame, after: Frame) -> bool:
        """Return whether two screens are equal outside of what moves by itself."""
        if before.content_hash == after.content_hash:
            return True
        if not self._moving or before.size != after.size:
            return False
        different = (before.bgrx[:, :, :3] != after.bgrx[:, :, :3]).any(axis=2)
        for left, top, right, bottom in self._moving:
            different[top:bottom, left:right] = False
        return not np.any(different)
