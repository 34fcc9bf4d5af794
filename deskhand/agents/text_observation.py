"""A screen in words, for models that cannot see. Invariant: what is said comes from the desktop alone, and is bounded.

It is the accessibility tree where the desktop has one; otherwise the windows with their titles and places, where it can list them.
Both are said by programs of the guest, so they are shown to the model and decide nothing.
"""

from __future__ import annotations

from typing import Any

from deskhand.desktop.base import Desktop

MAX_CHARS = 6000
"""Characters; what is beyond is left out, and that is said."""


async def describe_screen(desktop: Desktop) -> str:
    """What is on the screen, one element or window a line."""
    text, listing = await desktop.accessibility_tree(), getattr(desktop, "windows", None)
    if text is None and listing is not None:
        windows: list[Any] = await listing()
        text = "\n".join(
            f"window {each.title!r} at ({each.x}, {each.y}), {each.width} x {each.height}" for each in windows
        )
    text = text or "nothing is known of it"
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n(cut here)"
