"""Desktop themes and the files of a fresh home.

Nothing blinks, fades or pops up, so an idle screen does not change. Applications are the distribution's own; only their
ordinary configuration files are written, as a user would: no greetings, no requests, no network access of their own,
documents saved in Microsoft formats without prompts, no recovery. LibreOffice's keys are those of its configuration
registry. GIMP ignores the window manager, and its default layout puts half of the window off a small screen. VLC's
web interface and its password are those that OSWorld's tasks use to query playback.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from string import Template

from deskhand.desktop.applications import catalog
from deskhand.errors import ConfigError

DOUBLE_CLICK_MS = 400
"""The usual value. Clicks of two ops at one position are spaced further apart (`XTestInput`)."""
HOME_FOLDERS = ("Desktop", "Documents", "Downloads")


@dataclass(frozen=True)
class Theme:
    """Colors are "rrggbb"."""

    background: str = "c8d0d8"
    title: str = "3c5a78"
    inactive_title: str = "a8b0b8"
    inactive_text: str = "404040"
    dark: bool = False
    panel: bool = False
    """Whether a panel with a menu, launchers and a taskbar, and the files of the folder Desktop, are on the screen."""


_THEMES = {
    "plain": Theme(),
    "dark": Theme("384048", title="1e2a36", inactive_title="505860", inactive_text="c0c0c0", dark=True),
    "green": Theme("cfe0cf", title="2f6b3c", inactive_title="a3b8a6"),
    "panel": Theme(panel=True),
    "sand": Theme("e4dcc8", title="8a5a2b", inactive_title="c4b59c"),
}


def get_theme(name: str) -> Theme:
    """Return the theme of this name. Raises `ConfigError` if there is none."""
    if name not in _THEMES:
        raise ConfigError(f"unknown theme {name!r}; use one of {', '.join(sorted(_THEMES))}")
    return _THEMES[name]


@functools.cache
def home_files(theme: Theme) -> dict[str, str]:
    """Return the files of a fresh home by relative path: those in `home_files/`, with the theme's values filled in.

    They include the files of all applications, so a home does not depend on what is installed.
    """
    values = vars(theme) | {"dark": int(theme.dark), "double_click": DOUBLE_CLICK_MS, "rules": catalog.window_rules()}
    folder = Path(__file__).with_name("home_files")
    paths = [path for path in folder.rglob("*") if path.is_file()]
    texts = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in paths}
    files = {path: Template(text).safe_substitute(values) for path, text in texts.items()}
    return files | {".config/mimeapps.list": catalog.default_applications()}


def x_resources(theme: Theme) -> str:
    """Return the RESOURCE_MANAGER property of the root window; X toolkit programs read it at start."""
    background, foreground = ("#202020", "#e0e0e0") if theme.dark else ("#ffffff", "#000000")
    return _X_RESOURCES.format(background=background, foreground=foreground, double_click=DOUBLE_CLICK_MS)


_X_RESOURCES = """XTerm*faceName: DejaVu Sans Mono
XTerm*faceSize: 9
XTerm*cursorBlink: false
XTerm*locale: true
XTerm*utf8: 1
XTerm*multiClickTime: {double_click}
XTerm*background: {background}
XTerm*foreground: {foreground}
Xft.dpi: 96
Xft.antialias: 1
Xft.hinting: 1
Xft.hintstyle: hintfull
Xft.rgba: none
"""
