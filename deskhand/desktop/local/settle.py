"""When the screen is quiet. Invariant: the pixels handed back were read after the screen last changed, or the reason says "cap" or,
where only something moves by itself, "moving".

The X server tells when something was drawn (DAMAGE); only a drawing that changes pixels counts, and motion of its own (`motion.py`)
does not. No fixed sleep: the wait ends `quiet_s` after the last change, and at `cap_s` in any case. On a busy machine a guest may
not have had the processor yet, so quiet counts only when none of the guests is waiting to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deskhand.desktop.local.animation_filter import AnimationFilter
from deskhand.desktop.local.screen_reader import ScreenReader
from deskhand.desktop.local.x_connection import XConnection

_LOOK_INTERVAL_S = 0.004
_ATTEMPTS = 4
_READ_S = 0.05
BUSY_LIMIT_S = 1.0


@dataclass(frozen=True)
class SettleResult:
    """`pixels` is `uint32[H, W]`; `elapsed_s` runs to the last change that was no motion; `reason` is that of `Frame`."""

    pixels: np.ndarray
    elapsed_s: float
    reason: str


class Settler:
    """Waits for the screen of one desktop to be quiet. `busy` says whether a guest runs or waits for a processor."""

    def __init__(
        self, connection: XConnection, screen: ScreenReader, size: tuple[int, int], busy: Callable[[], bool]
    ) -> None:
        self._connection = connection
        self._screen = screen
        self._busy = busy
        self.motion = AnimationFilter(*size)
        self._held_up = False

    def settle(self, quiet_s: float, cap_s: float, busy_limit_s: float = BUSY_LIMIT_S) -> SettleResult:
        """Wait until nothing has changed for `quiet_s`, at most `cap_s`, and copy the screen.

        A busy guest puts the end off by half a quiet time, `busy_limit_s` in all (a program that computes for ever must not hold
        every step up to the cap).
        """
        connection = self._connection
        start = looked_at = time.monotonic()
        connection.sync()
        connection.forget_drawing()
        pixels = self._screen.copy()
        cap_at, quiet_at, last_change = start + cap_s, start + quiet_s, start
        put_off_s = 0.0
        moved = False
        self.motion.begin(self._held_up)
        self._held_up = False
        while (now := time.monotonic()) < cap_at:
            self.motion.passed(now - looked_at)
            looked_at = now
            if now >= quiet_at:
                if put_off_s >= busy_limit_s or not self._busy():
                    return SettleResult(self.capture(), last_change - start, "moving" if moved else "quiet")
                put_off_s += quiet_s / 2
                quiet_at = now + quiet_s / 2
            if not connection.wait_for_drawing(min(quiet_at, cap_at) - now):
                continue
            time.sleep(_LOOK_INTERVAL_S)
            connection.forget_drawing()
            current = self._screen.copy()
            different = current != pixels
            if not different.any():
                continue
            pixels = current
            if self.motion.explains(different):
                moved = True
            else:
                last_change = time.monotonic()
                quiet_at = last_change + quiet_s
        self._held_up = True
        return SettleResult(self.capture(), last_change - start, "cap")

    def capture(self) -> np.ndarray:
        """A whole copy of the screen now; when drawing never pauses, the server is held still for the copy.

        The server carries out one request after the other, so a copy between two of its replies is torn only if it has told of
        drawing between them. It tells once, until it is asked to tell again: what it told of between the asking and the first
        reply would hide what is drawn during the copy.
        """
        if self._screen.at_once:
            return self._screen.copy()
        connection = self._connection
        connection.was_drawn(_READ_S)
        for _ in range(_ATTEMPTS):
            connection.forget_drawing()
            connection.sync()
            if connection.was_drawn(_READ_S):
                continue
            pixels = self._screen.copy()
            connection.sync()
            if not connection.was_drawn(_READ_S):
                return pixels
        connection.core.GrabServer()
        connection.sync()
        try:
            return self._screen.copy()
        finally:
            connection.core.UngrabServer()
            connection.sync()
