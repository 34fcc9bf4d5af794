"""Window placement and small GTK widgets, for small screens."""

from __future__ import annotations

import random

from deskhand.desktop.base import StageableDesktop, Window
from deskhand.tasks.task import Rect

TITLE_BAR_PX = 18
BORDER_PX = 2
DIALOG_BUTTON_PX = 50
FONT_PX = 10

GTK_CSS = f"""
* {{
  font-size: {FONT_PX}px;
  -GtkButtonBox-child-min-width: {DIALOG_BUTTON_PX};
  -GtkButtonBox-child-min-height: 18;
  -GtkDialog-content-area-border: 0;
  -GtkDialog-action-area-border: 2;
}}
button {{ padding: 1px 2px; min-height: 0; min-width: 0; margin: 0; }}
entry, textview {{ min-height: 0; padding: 0; }}
menubar menuitem, menubar > menuitem {{ padding: 0 3px; min-height: 0; }}
dialog box, messagedialog box {{ margin: 0; padding: 0; }}
"""


def scatter(rng: random.Random, sizes: list[tuple[int, int]], width: int, height: int) -> list[tuple[int, int]]:
    """Return client-area positions (x, y) for windows of `sizes` (w, h) on a screen, without overlap.

    Title bars stay on the screen. Raises `ValueError` if the windows do not fit in 2000 tries.
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


def body(window: Window) -> Rect:
    """Return the client area of a window."""
    return Rect(window.x, window.y, window.x + window.width, window.y + window.height)


def close_button(window: Window) -> Rect:
    """Return the clickable part of the title bar's close button, in the themes of local desktops."""
    right = window.x + window.width
    return Rect(right - window.frame_top + 2, window.y - window.frame_top + 3, right - 4, window.y - 3)


async def use_compact_theme(desktop: StageableDesktop) -> None:
    """Write the style sheet into the guest's home; programs that start later use it."""
    await desktop.push(".config/gtk-3.0/gtk.css", GTK_CSS.encode())
