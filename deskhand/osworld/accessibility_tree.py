"""What Chrome shows, read from the accessibility tree. Run by `tasks.subprocess_call`; used by `getters`."""

from __future__ import annotations

from xml.etree import ElementTree

from deskhand.tasks.document_readers import parsing

_SELECTED = "{https://accessibility.ubuntu.example.org/ns/state}selected"
_BROWSERS = ("Google Chrome", "Google-chrome", "Chromium")
_MODES = {"light": "light", "dark": "dark", "device": "system"}


def shown_url(tree: bytes) -> str | None:
    """Return the text of the address bar, None if there is none or the last one is empty."""
    shown = [
        entry.text or ""
        for application in _browsers(tree)
        for entry in application.iter("entry")
        if entry.get("name") == "Address and search bar"
    ]
    return shown[0] if shown and shown[-1] else None


def shown_mode(tree: bytes) -> str | None:
    """Return the appearance that the settings page shows, None if it is not open; Chrome writes its profile late."""
    for application in _browsers(tree):
        for box in application.iter("combo-box"):
            items = [item for item in box.iter("menu-item") if _SELECTED in item.attrib]
            shown = items[0].get("name", "").strip().lower() if items else ""
            if box.get("name") == "Mode" and shown in _MODES:
                return _MODES[shown]
    return None


def _browsers(tree: bytes) -> list[ElementTree.Element]:
    with parsing("accessibility tree"):
        root = ElementTree.fromstring(tree)
    return [application for application in root.iter("application") if application.get("name") in _BROWSERS]
