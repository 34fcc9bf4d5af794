"""Where windows go on a small screen. Invariant: title bars stay on the screen and windows placed together never overlap."""

from __future__ import annotations

import random
from typing import Any

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.task import Rect

WindowLike = Any  # deskhand.desktop.base.Window; tasks do not import desktop

TITLE_BAR_PX = 18
BORDER_PX = 2


def scatter(rng: random.Random, sizes: list[tuple[int, int]], width: int, height: int) -> list[tuple[int, int]]:
    """Client-area positions (x, y) for windows of `sizes` (w, h) on a `width` x `height` screen, none overlapping.

    Raises `ValueError` when they do not fit in 2000 tries.
    """
    for _ in range(2000):
        placed: list[Rect] = []
        for w, h in sizes:
            right, bottom = width - w - BORDER_PX, height - h - BORDER_PX
            if right < BORDER_PX or bottom < TITLE_BAR_PX:
                raise ValueError(f"a window of {w}x{h} does not fit on a {width}x{height} screen")
            x, y = rng.randint(BORDER_PX, right), rng.randint(TITLE_BAR_PX, bottom)
            box = Rect(x - BORDER_PX, y - TITLE_BAR_PX, x + w + BORDER_PX, y + h + BORDER_PX)
            if any(_overlap(box, other) for other in placed):
                break
            placed.append(box)
        if len(placed) == len(sizes):
            return [(box.left + BORDER_PX, box.top + TITLE_BAR_PX) for box in placed]
    raise ValueError(f"{len(sizes)} windows do not fit on a {width}x{height} screen")


def _overlap(a: Rect, b: Rect) -> bool:
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom


def close_button(window: WindowLike) -> Rect:
    """The close button at the right end of the window manager's title bar of our own theme: the pixels that close, a little
    fewer than are drawn."""
    right = window.x + window.width
    return Rect(right - window.frame_top + 2, window.y - window.frame_top + 3, right - 4, window.y - 3)


UNREADABLE = (FileNotFoundError, PermissionError, IsADirectoryError)
"""What a desktop raises for a path that is not there or that the guest made into a link out, a folder or a pipe: the agent's doing,
so a check takes it for a wrong answer and not for its own failure."""


async def file_text(desktop: StageableDesktop, path: str) -> str | None:
    """The text of a guest file, or None when there is no such plain file. Bytes that are not UTF-8 become U+FFFD."""
    try:
        return (await desktop.pull(path)).decode("utf-8", errors="replace")
    except UNREADABLE:
        return None


async def folder_names(desktop: StageableDesktop, path: str) -> list[str]:
    """Names in a guest folder; none when there is no such folder."""
    try:
        return await desktop.listdir(path)
    except UNREADABLE:
        return []
