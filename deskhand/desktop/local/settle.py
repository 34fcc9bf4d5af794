"""Settling: wait until the screen stops changing, and copy it.

The X server reports drawing (DAMAGE). Only drawing that changes pixels counts, and animations (`animation_filter`) do
not. There is no fixed sleep: the wait ends `settle_s` after the last change, at most after `timeout_s`. On a busy
machine a guest may be waiting for the CPU, so the screen is settled only if no guest is runnable.

Invariant: the returned pixels were read after the last change, or the reason is "cap" (time limit) or "moving" (only
animations changed).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deskhand.desktop.local.animation_filter import AnimationFilter
from deskhand.desktop.local.screen_reader import ScreenReader
from deskhand.desktop.local.x_connection import XConnection

_POLL_S = 0.004
_ATTEMPTS = 4
_DRAIN_LIMIT_S = 0.05
MAX_BUSY_S = 1.0


@dataclass(frozen=True)
class SettleResult:
    """`elapsed_s` is the time to the last change that was not an animation; `reason` is that of `Frame`."""

    pixels: np.ndarray
    elapsed_s: float
    reason: str


class Settler:
    """Waits for the screen of one desktop to settle. `busy` returns whether a guest runs or waits for the CPU."""

    def __init__(
        self, connection: XConnection, screen: ScreenReader, size: tuple[int, int], busy: Callable[[], bool]
    ) -> None:
        self._connection = connection
        self._screen = screen
        self._busy = busy
        self.animation_filter = AnimationFilter(*size)
        self._timed_out = False

    def settle(self, settle_s: float, timeout_s: float, max_busy_s: float = MAX_BUSY_S) -> SettleResult:
        """Wait until nothing has changed for `settle_s`, at most `timeout_s`, and copy the screen.

        A busy guest delays the end by half of `settle_s` at a time, `max_busy_s` in total: a program that computes
        forever must not delay every step to the time limit.
        """
        connection = self._connection
        start = last_checked = time.monotonic()
        connection.sync()
        connection.clear_damage()
        pixels = self._screen.copy()
        deadline, settled_at, last_change = start + timeout_s, start + settle_s, start
        delayed_s = 0.0
        has_animation = False
        self.animation_filter.start_settle(self._timed_out)
        self._timed_out = False
        while (now := time.monotonic()) < deadline:
            self.animation_filter.advance(now - last_checked)
            last_checked = now
            if now >= settled_at:
                if delayed_s >= max_busy_s or not self._busy():
                    return SettleResult(self.capture(), last_change - start, "moving" if has_animation else "quiet")
                delayed_s += settle_s / 2
                settled_at = now + settle_s / 2
            if not connection.wait_for_damage(min(settled_at, deadline) - now):
                continue
            time.sleep(_POLL_S)
            connection.clear_damage()
            current = self._screen.copy()
            changed = current != pixels
            if not changed.any():
                continue
            pixels = current
            if self.animation_filter.is_animation(changed):
                has_animation = True
            else:
                last_change = time.monotonic()
                settled_at = last_change + settle_s
        self._timed_out = True
        return SettleResult(self.capture(), last_change - start, "cap")

    def capture(self) -> np.ndarray:
        """Return an untorn copy of the screen; if drawing never pauses, the server is grabbed for the copy.

        The server processes requests in order, so a copy between two of its replies is torn only if it reported drawing
        between them. It reports once until re-armed: a report from before the first reply would hide drawing during the
        copy.
        """
        if self._screen.is_atomic:
            return self._screen.copy()
        connection = self._connection
        connection.has_damage(_DRAIN_LIMIT_S)
        for _ in range(_ATTEMPTS):
            connection.clear_damage()
            connection.sync()
            if connection.has_damage(_DRAIN_LIMIT_S):
                continue
            pixels = self._screen.copy()
            connection.sync()
            if not connection.has_damage(_DRAIN_LIMIT_S):
                return pixels
        connection.core.GrabServer()
        connection.sync()
        try:
            return self._screen.copy()
        finally:
            connection.core.UngrabServer()
            connection.sync()
