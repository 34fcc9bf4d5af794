"""Parser for the window list of `wmctrl`."""

from __future__ import annotations

from deskhand.desktop.base import Window


def windows(text: str) -> list[Window]:
    """Parse the output of `wmctrl -lGx`; skips invalid lines, and panels (desktop -1)."""
    found = []
    for line in text.splitlines():
        words = line.split(None, 8)
        try:
            number, desktop, x, y, width, height = int(words[0], 16), *map(int, words[1:6])
        except (ValueError, IndexError):
            continue
        if desktop >= 0 and len(words) >= 8:
            found.append(Window(number, words[8] if len(words) > 8 else "", words[6], x, y, width, height))
    return found
