"""Windows as the program wmctrl lists them. Invariant: a line that cannot be read is left out."""

from __future__ import annotations

from deskhand.desktop.base import Window


def windows(text: str) -> list[Window]:
    """The lines of `wmctrl -lGx`: id, desktop, x, y, width, height, class, host, title. Windows of all desktops (-1) are panels."""
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
