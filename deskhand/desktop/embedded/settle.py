"""When the screen is quiet. Invariant: the pixels handed back were read after the screen last changed, or the reason says "cap".

The X server tells when something was drawn (DAMAGE); only a drawing that changes pixels counts. No fixed sleep: the wait ends
`quiet_s` after the last change, and at `cap_s` in any case.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from deskhand.desktop.embedded.connection import Connection
from deskhand.desktop.embedded.framebuffer import Framebuffer

_LOOK_INTERVAL_S = 0.004


@dataclass(frozen=True)
class Settled:
    """`pixels` is `uint32[H, W]`; `elapsed_s` runs to the last change that was seen."""

    pixels: np.ndarray
    elapsed_s: float
    reason: str


def settle(connection: Connection, framebuffer: Framebuffer, quiet_s: float, cap_s: float) -> Settled:
    """Wait until nothing has changed for `quiet_s`, at most `cap_s`, and copy the screen."""
    start = time.monotonic()
    connection.sync()
    connection.forget_drawing()
    pixels = framebuffer.copy()
    last_change = start
    while True:
        now = time.monotonic()
        quiet_at, cap_at = last_change + quiet_s, start + cap_s
        if now >= min(quiet_at, cap_at):
            break
        if not connection.wait_for_drawing(min(quiet_at, cap_at) - now):
            continue
        time.sleep(_LOOK_INTERVAL_S)
        connection.forget_drawing()
        current = framebuffer.copy()
        if not np.array_equal(current, pixels):
            pixels = current
            last_change = time.monotonic()
    reason = "quiet" if last_change + quiet_s <= time.monotonic() else "cap"
    return Settled(capture(connection, framebuffer), last_change - start, reason)


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
