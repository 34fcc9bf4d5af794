"""When the screen is quiet. Invariant: the pixels handed back were read after the screen last changed, or the reason says "cap".

The X server tells when something was drawn (DAMAGE); only a drawing that changes pixels counts. No fixed sleep: the wait ends
`quiet_s` after the last change, and at `cap_s` in any case. On a busy machine a guest may not have had the processor yet, so
quiet counts only when none of the guests is waiting to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deskhand.desktop.embedded.connection import Connection
from deskhand.desktop.embedded.framebuffer import Framebuffer

_LOOK_INTERVAL_S = 0.004
BUSY_LIMIT_S = 1.0


@dataclass(frozen=True)
class Settled:
    """`pixels` is `uint32[H, W]`; `elapsed_s` runs to the last change that was seen."""

    pixels: np.ndarray
    elapsed_s: float
    reason: str


def settle(
    connection: Connection,
    framebuffer: Framebuffer,
    quiet_s: float,
    cap_s: float,
    busy: Callable[[], bool] = lambda: False,
    busy_limit_s: float = BUSY_LIMIT_S,
) -> Settled:
    """Wait until nothing has changed for `quiet_s`, at most `cap_s`, and copy the screen.

    `busy` says whether a guest is running; it puts the end off by half a quiet time, `busy_limit_s` in all (a program that
    computes for ever must not hold every step up to the cap).
    """
    start = time.monotonic()
    connection.sync()
    connection.forget_drawing()
    pixels = framebuffer.copy()
    cap_at, quiet_at, last_change = start + cap_s, start + quiet_s, start
    put_off_s = 0.0
    while (now := time.monotonic()) < cap_at:
        if now >= quiet_at:
            if put_off_s >= busy_limit_s or not busy():
                return Settled(capture(connection, framebuffer), last_change - start, "quiet")
            put_off_s += quiet_s / 2
            quiet_at = now + quiet_s / 2
        if not connection.wait_for_drawing(min(quiet_at, cap_at) - now):
            continue
        time.sleep(_LOOK_INTERVAL_S)
        connection.forget_drawing()
        current = framebuffer.copy()
        if not np.array_equal(current, pixels):
            pixels = current
            last_change = time.monotonic()
            quiet_at = last_change + quiet_s
    return Settled(capture(connection, framebuffer), last_change - start, "cap")


def capture(connection: Connection, framebuffer: Framebuffer) -> np.ndarray:
    """A whole copy of the screen now; when drawing never pauses, the server is held still for the copy."""
    pixels = framebuffer.whole_copy()
    if pixels is None:
        connection.core.GrabServer()
        connection.sync()
        try:
            pixels = framebuffer.copy()
        finally:
            connection.core.UngrabServer()
            connection.sync()
    return pixels
