"""The medium screen and how an oracle looks at it. Invariant: places are found in the pixels and the window list, as a person
finds them, so no font or theme is assumed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Literal

import numpy as np

from deskhand.actions.ops import Click, Point, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks.suites.basics.layout import UNREADABLE, WindowLike, folder_names
from deskhand.tasks.task import Rect

WIDTH, HEIGHT = 512, 384
THEMES = ("plain", "dark", "green", "sand")
INK_CONTRAST = 40
MIN_GAP_PX, MAX_GAP_PX = 2, 16
BESIDE_GAP_PX, BELOW_GAP_PX = 6, 3
"""More than between the letters of a word, less than between two things."""
MIN_ENTRY_PX = 16
ENTRY_LINE_STEP_PX = 10

View = Literal["icon", "compact"]


def click_in(box: Rect) -> Click:
    """A left click in the middle of `box`, in pixels of the medium screen."""
    return Click(Point(*box.center, screen_px(WIDTH, HEIGHT)))


def body(window: WindowLike) -> Rect:
    """The client area of a window."""
    return Rect(window.x, window.y, window.x + window.width, window.y + window.height)


def plain_area(rgb: np.ndarray, box: Rect) -> Rect:
    """The part of `box` below its menus and bars: `box` as high as its left edge has the colour that it has near the bottom.

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
    """The `count` things that stand in rows and columns on the one-coloured ground of `box`, row by row, or None.

    Empty lines part the rows, empty columns the things in a row. A thing is a picture with a word below it ("icon") or right of
    it ("compact"), so in that direction the smallest gap is taken that leaves `count` things.
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
    """Half-open stretches of `used` (bool[n]) that are parted by at least `gap` unused places."""
    runs: list[tuple[int, int]] = []
    for place in np.flatnonzero(used).tolist():
        if runs and place - runs[-1][1] < gap:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


def find_entries(rgb: np.ndarray, box: Rect, count: int) -> list[Rect] | None:
    """The `count` empty text fields of a form that stand one below the other, top down, or None.

    Along a vertical line, a field is a long stretch of one colour that is not the window's; a button is shaded and so is
    not. Lines are tried from right to left until one crosses `count` fields.
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
    """The stretch `top` to `bottom` on the line `across`, as wide as its colour goes."""
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
    """Look at the first window that matches until `find(rgb, body)` finds something in it.

    Raises `InfrastructureError` when it does not within `timeout_s`.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        rgb = (await desktop.observe()).rgb()
        window = (await desktop.wait_window(match))[0]
        found = find(rgb, body(window))
        if found is not None:
            return found
        if asyncio.get_running_loop().time() > deadline:
            where = f"window {window.title!r} of {window.wm_class} ({window.width}x{window.height} at {window.x},{window.y})"
            raise InfrastructureError(
                f"{where} did not show {what} within {timeout_s:g} s; did its program start well?"
            )


async def wait_until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 2.0) -> None:
    """Wait, as a person does, until the program has followed. Returns at `timeout_s` in any case: the judge has the last word."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        if await condition() or asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(0.02)


async def folder_contents(desktop: StageableDesktop, folder: str) -> dict[str, bytes | None]:
    """Bytes of each file in a folder by name; None for what is not a plain file. An absent folder is empty."""
    return {name: await _bytes(desktop, f"{folder}/{name}") for name in await folder_names(desktop, folder)}


async def _bytes(desktop: StageableDesktop, path: str) -> bytes | None:
    try:
        return await desktop.pull(path)
    except UNREADABLE:
        return None
