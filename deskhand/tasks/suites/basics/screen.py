"""The medium screen and how an oracle looks at it. Invariant: places are found in the pixels and the window list, as a person
finds them, so no font or theme is assumed.
"""

from __future__ import annotations

import asyncio

import numpy as np

from deskhand.actions.ops import Click, Point, screen_px
from deskhand.errors import InfrastructureError
from deskhand.tasks.suites.basics.layout import WindowLike
from deskhand.tasks.task import Rect, StagedDesktopLike

WIDTH, HEIGHT = 512, 384
THEMES = ("plain", "dark", "green", "sand")
INK_CONTRAST = 40
SMALLEST_GAP_PX, LARGEST_GAP_PX = 2, 16


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


def find_cells(rgb: np.ndarray, box: Rect, count: int) -> list[Rect] | None:
    """The `count` things that stand in rows and columns on the one-coloured ground of `box`, row by row, or None.

    Rows are parted by empty lines and things by empty columns; the smallest gap that gives `count` things is the one.
    """
    ground = rgb[box.bottom - 3, box.left + 2].astype(np.int16)
    part = rgb[box.top : box.bottom, box.left : box.right].astype(np.int16)
    ink = (np.abs(part - ground) > INK_CONTRAST).any(axis=2)
    for gap in range(SMALLEST_GAP_PX, LARGEST_GAP_PX):
        cells = [
            Rect(box.left + left, box.top + top, box.left + right, box.top + bottom)
            for top, bottom in _runs(ink.any(axis=1), gap)
            for left, right in _runs(ink[top:bottom].any(axis=0), gap)
        ]
        if len(cells) == count:
            return cells
    return None


def _runs(used: np.ndarray, gap: int) -> list[tuple[int, int]]:
    """Half-open stretches of `used` (bool[n]) that are parted by at least `gap` unused places."""
    runs: list[tuple[int, int]] = []
    for place in np.flatnonzero(used).tolist():
        if runs and place - runs[-1][1] < gap:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


async def see_cells(desktop: StagedDesktopLike, box: Rect, count: int, timeout_s: float = 10.0) -> list[Rect]:
    """Look until `find_cells` finds `count` things on the plain area of `box`. Raises `InfrastructureError` when it never does."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        rgb = (await desktop.observe()).rgb()
        cells = find_cells(rgb, plain_area(rgb, box), count)
        if cells is not None:
            return cells
        if asyncio.get_running_loop().time() > deadline:
            raise InfrastructureError(f"a window did not show {count} things within {timeout_s:g} s; did its program start well?")


async def folder_contents(desktop: StagedDesktopLike, folder: str) -> dict[str, bytes | None]:
    """Bytes of each file in a folder by name; None for what is not a readable file. An absent folder is empty."""
    try:
        names = await desktop.listdir(folder)
    except FileNotFoundError:
        return {}
    return {name: await _bytes(desktop, f"{folder}/{name}") for name in names}


async def _bytes(desktop: StagedDesktopLike, path: str) -> bytes | None:
    try:
        return await desktop.pull(path)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return None
