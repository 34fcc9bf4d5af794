"""Zoom into a rectangle of a screenshot. Coordinates of later actions still refer to the whole screen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from deskhand.actions.ops import Zoom, to_screen_px
from deskhand.desktop.base import Frame


def crop_and_enlarge(frame: Frame, zoom: Zoom, size: tuple[int, int] | None = None) -> Frame:
    """Return the enlarged rectangle in the top left of a black frame of `size`, by default that of `frame`.

    Corners may be in any order; the rectangle has at least one pixel. Raises `AgentError` for a corner off the screen.
    Takes milliseconds: call it in a worker thread.
    """
    width, height = frame.size
    corners, space = (zoom.top_left, zoom.bottom_right), zoom.top_left.space
    xs, ys = zip(*(to_screen_px(corner, width, height) for corner in corners), strict=True)
    left, right = _along([corner.x for corner in corners], xs, space.width, width, space.kind)
    top, bottom = _along([corner.y for corner in corners], ys, space.height, height, space.kind)
    cut = Image.fromarray(frame.rgb()[top:bottom, left:right])
    width, height = size or frame.size
    scale = min(width / cut.width, height / cut.height)
    wide, high = max(1, round(cut.width * scale)), max(1, round(cut.height * scale))
    rgb = np.asarray(cut.resize((wide, high), Image.Resampling.LANCZOS))
    bgrx = np.zeros((height, width, 4), dtype=np.uint8)
    bgrx[:high, :wide, 2::-1] = rgb
    bgrx.flags.writeable = False
    return replace(frame, bgrx=bgrx, content_hash=hashlib.sha256(bgrx.tobytes()).hexdigest(), under_cursor=None)


def _along(values: Sequence[float], pixels: Sequence[int], extent: float, side: int, kind: str) -> tuple[int, int]:
    """Return the first pixel and the end. Pixel coordinates are inclusive, normalized ones are edges."""
    if kind == "pixels":
        return min(pixels), max(pixels) + 1
    start, end = (round(value * side / extent) for value in sorted(values))
    start = min(start, side - 1)
    return start, max(end, start + 1)
