"""Text observation of a desktop, for models without vision.

Used with `agent.observation: a11y_tree`. It is the accessibility tree, or the window list if there is none. Both come
from guest programs: they are shown to the model and never used for scoring.
"""

from __future__ import annotations

from typing import Any

from deskhand.desktop.base import Desktop

MAX_CHARS = 6000
"""Maximum length; longer texts are cut with a note."""


async def describe_screen(desktop: Desktop) -> str:
    """Return the elements or windows on the screen, one per line."""
    text, listing = await desktop.accessibility_tree(), getattr(desktop, "windows", None)
    if text is None and listing is not None:
        windows: list[Any] = await listing()
        text = "\n".join(
            f"window {each.title!r} at ({each.x}, {each.y}), {each.width} x {each.height}" for each in windows
        )
    text = text or "nothing is known of it"
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n(cut here)"
