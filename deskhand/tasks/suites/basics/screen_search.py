"""Find things on the 512x384 screen in its pixels, as an oracle does. No font or theme is assumed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Literal

import numpy as np

from deskhand.actions.ops import Click, Point, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks.suites.basics.layout import body
from deskhand.tasks.suites.basics.scenario import Scenario
from deskhand.tasks.task import Rect

INK_CONTRAST = 40
MIN_GAP_PX, MAX_GAP_PX = 2, 16
BESIDE_GAP_PX, BELOW_GAP_PX = 6, 3
"""Wider than the gaps between letters, narrower than those between things."""
MIN_ENTRY_PX = 16
ENTRY_LINE_STEP_PX = 10

View = Literal["icon", "compact"]


def click_in(box: Rect) -> Click:
    """Return a left click in the middle of `box`."""
    return Click(Point(*box.center, screen_px(Scenario.width, Scenario.height)))


def plain_area(rgb: np.ndarray, box: Rect) -> Rect:
    """Return the part of `box` below menus and bars: the rows whose left edge has the color that it has near the
    bottom.

    `rgb` is `uint8[H, W, 3]` of the whole screen.
    """
    edge = rgb[:, box.left + 2]
    start = box.bottom - 7
    base = edge[start]
    top = bottom = start
    while top > box.top and (edge[top - 1] == base).all():
        top -= 1
    while bottom < box.bottom and (edge[bottom] == base).all():
        bottom += 1
    return Rect(box.left, top, box.right, bottom)


def find_cells(rgb: np.ndarray, box: Rect, count: int, view: View) -> list[Rect] | None:
    """Return the `count` things in rows and columns on the plain background of `box`, row by row, or None.

    Empty lines separate rows, empty columns the things in a row. A thing is an icon with a word below it ("icon") or
    to its right ("compact"), so in that direction the smallest gap that leaves `count` things is used.
    """
    ground = rgb[box.bottom - 3, box.left + 2].astype(np.int16)
    part = rgb[box.top : box.bottom, box.left : box.right].astype(np.int16)
    ink = (np.abs(part - ground) > INK_CONTRAST).any(axis=2)
    for gap in range(MIN_GAP_PX, MAX_GAP_PX):
        row_gap, column_gap = (gap, BESIDE_GAP_PX) if view == "icon" else (BELOW_GAP_PX, gap)
        cells = [
            Rect(box.left + left, box.top + top, box.left + right, box.top + bottom)
            for top, bottom in runs(ink.any(axis=1), row_gap)
            for left, right in runs(ink[top:bottom].any(axis=0), column_gap)
        ]
        if len(cells) == count:
            return cells
    return None


def runs(used: np.ndarray, gap: int) -> list[tuple[int, int]]:
    """Return the half-open runs of `used` (bool[n]) that are separated by at least `gap` unused positions."""
    runs: list[tuple[int, int]] = []
    for index in np.flatnonzero(used).tolist():
        if runs and index - runs[-1][1] < gap:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def find_entries(rgb: np.ndarray, box: Rect, count: int) -> list[Rect] | None:
    """Return the `count` empty text fields of a form, top down, or None.

    On a vertical line, a field is a long run of one color other than the window's; a button is shaded and is not.
    Lines are tried from right to left until one crosses `count` fields.
    """
    window_color = rgb[box.bottom - 3, box.left + 3]
    for across in range(box.right - ENTRY_LINE_STEP_PX, box.left, -ENTRY_LINE_STEP_PX):
        line = rgb[box.top : box.bottom, across]
        changes = np.flatnonzero((line[1:] != line[:-1]).any(axis=1)) + 1
        stretches = itertools.pairwise([0, *changes.tolist(), len(line)])
        tall = [(a, b) for a, b in stretches if b - a >= MIN_ENTRY_PX and (line[a] != window_color).any()]
        fields = [_grow_sideways(rgb, box, across, box.top + top, box.top + bottom) for top, bottom in tall]
        if len(fields) == count and all(field.right - field.left >= MIN_ENTRY_PX for field in fields):
            return fields
    return None


def _grow_sideways(rgb: np.ndarray, box: Rect, across: int, top: int, bottom: int) -> Rect:
    """Return the rows `top` to `bottom` at the column `across`, as wide as the color extends."""
    row = (rgb[(top + bottom) // 2] == rgb[top, across]).all(axis=1)
    left = right = across
    while left > box.left and row[left - 1]:
        left -= 1
    while right < box.right and row[right]:
        right += 1
    return Rect(left, top, right, bottom)


Find = Callable[[np.ndarray, Rect], list[Rect] | None]


async def wait_until_visible(
    desktop: StageableDesktop, match: str, find: Find, what: str, timeout_s: float = 10.0
) -> list[Rect]:
    """Observe the first window that matches until `find(rgb, body)` finds something in it.

    Raises `InfrastructureError` after `timeout_s`.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        rgb = (await desktop.observe()).rgb()
        window = (await desktop.wait_window(match))[0]
        found = find(rgb, body(window))
        if found is not None:
            return found
        if asyncio.get_running_loop().time() > deadline:
            box = f"{window.width}x{window.height} at {window.x},{window.y}"
            where = f"window {window.title!r} of {window.wm_class} ({box})"
            raise InfrastructureError(f"{where} did not show {what} within {timeout_s:g} s")


async def wait_until(
    condition: Callable[[], Awaitable[bool]], timeout_s: float = 2.0, interval_s: float = 0.02
) -> None:
    """Wait until a condition holds; return after `timeout_s` in any case, because the judge decides."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        if await condition() or asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(interval_s)
