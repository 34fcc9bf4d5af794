"""All application profiles by name."""

from __future__ import annotations

from typing import Any

from deskhand.desktop.applications import browser, code_editor, office
from deskhand.desktop.applications.profile import Profile
from deskhand.errors import ConfigError


def _simple(name: str, summary: str, program: str, *mime_types: str, **others: Any) -> Profile:
    """Return the profile of an application whose package and window are named like its program."""
    defaults: dict[str, Any] = {"packages": (program,), "argv": (program,), "window": program, "groups": ("basic",)}
    return Profile(name=name, summary=summary, mime_types=mime_types, **(defaults | others))


_TEXT = ("text/plain", "text/x-python", "application/json", "text/markdown")
_ARCHIVES = ("application/zip", "application/x-tar", "application/x-compressed-tar")
_BASIC = (
    _simple("editor", "text editor (mousepad)", "mousepad", *_TEXT, desktop_entry="org.xfce.mousepad.desktop"),
    _simple("files", "file manager (pcmanfm)", "pcmanfm", "inode/directory", desktop_entry="pcmanfm.desktop"),
    _simple(
        "terminal",
        "terminal (xfce4-terminal)",
        "xfce4-terminal",
        # Schemas of the settings that OSWorld's tasks read and write with gsettings.
        packages=("xfce4-terminal", "gsettings-desktop-schemas", "gnome-shell-common", "gnome-settings-daemon-common"),
        argv=("xfce4-terminal", "--disable-server"),
    ),
    _simple("geany", "code editor (Geany)", "geany", desktop_entry="geany.desktop"),
    _simple("archives", "archive manager (Xarchiver)", "xarchiver", *_ARCHIVES, desktop_entry="xarchiver.desktop"),
    # A button that was activated by its key ignores the key until it pops up again, by a timer of 100 ms.
    _simple("calculator", "calculator (galculator)", "galculator", repeat_gap_s=0.11),
)
_PANEL = _simple("panel", "panel with a menu, launchers and a taskbar (LXPanel)", "lxpanel", groups=("panel",))
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/bmp")
_MEDIA = (
    _simple("images", "image viewer (gpicview)", "gpicview", *_IMAGES, desktop_entry="gpicview.desktop"),
    _simple(
        "evince",
        "document viewer",
        "evince",
        "application/pdf",
        "application/postscript",
        desktop_entry="org.gnome.Evince.desktop",
        maximized="Evince",
        groups=("documents",),
    ),
    _simple(
        "gimp",
        "image editor",
        "gimp",
        argv=("gimp", "--no-splash"),
        desktop_entry="gimp.desktop",
        maximized="Gimp*",
        groups=("graphics",),
    ),
    _simple(
        "vlc",
        "media player",
        "vlc",
        *("video/mp4", "video/x-matroska", "video/webm", "audio/mpeg", "audio/ogg"),
        packages=("vlc-bin", "vlc-plugin-base", "vlc-plugin-qt", "vlc-plugin-video-output"),
        component="/usr/lib/*/vlc/plugins/gui/libqt_plugin.so",  # without it, `vlc` has no window
        desktop_entry="vlc.desktop",
        maximized="vlc",
        groups=("media",),
    ),
)
# The server plays into a null sink, at 40 % of the volume (`home_files/.config/pulse`).
_SOUND = _simple(
    "volume",
    "sound server and volume control (pavucontrol)",
    "pavucontrol",
    packages=("pavucontrol", "pulseaudio", "pulseaudio-utils"),
    component="/usr/bin/pulseaudio",
    groups=("media",),
)
# Claws Mail starts in a tenth of Thunderbird's time and memory: 1.1 s and 45 MiB next to 10.6 s and 460 MiB. Sylpheed
# is as light (1.1 s, 35 MiB), but uses GTK 2 and is not in the accessibility tree. The account here has no server.
_MAIL = (
    _simple("claws-mail", "mail program (Claws Mail)", "claws-mail", groups=("mail",)),
    _simple(
        "thunderbird",
        "mail client",
        "thunderbird",
        *("message/rfc822", "x-scheme-handler/mailto"),
        desktop_entry="thunderbird.desktop",
        maximized="thunderbird",
        groups=("mail",),
    ),
)

PROFILES = {
    profile.name: profile
    for profile in (*_BASIC, _PANEL, *office.PROFILES, *browser.PROFILES, *_MEDIA, _SOUND, *_MAIL, code_editor.VSCODE)
}
OSWORLD_PROGRAMS = {"google-chrome": "chromium", "gnome-terminal": "xfce4-terminal", "nautilus": "pcmanfm"}
"""Programs that OSWorld tasks start, and Debian's that run under these names (`server/guest_tools`). GNOME's own need
its session."""


def get_profile(name: str) -> Profile:
    """Return a profile by name. Raises `ConfigError` if it is not in `PROFILES`."""
    if name not in PROFILES:
        raise ConfigError(f"unknown application {name!r}; use one of {', '.join(PROFILES)}")
    return PROFILES[name]


def resolve_profiles(names: list[str]) -> list[Profile]:
    """Return profiles by name or group in catalog order; "all" selects all. Raises `ConfigError` for unknown names."""
    groups = {group for entry in PROFILES.values() for group in entry.groups}
    for name in names:
        if name not in groups | {"all"}:
            get_profile(name)
    return [entry for entry in PROFILES.values() if "all" in names or {entry.name, *entry.groups} & set(names)]


def repeat_gap_s(wm_class: str) -> float:
    """Return the `repeat_gap_s` of the application with a window of this class."""
    return max((entry.repeat_gap_s for entry in PROFILES.values() if entry.window in wm_class.lower()), default=0.0)


def default_applications() -> str:
    """Return the text of `mimeapps.list`."""
    lines = [f"{mime}={entry.desktop_entry}" for entry in PROFILES.values() for mime in entry.mime_types]
    return "\n".join(["[Default Applications]", *lines, ""])


def window_rules() -> str:
    """Return the applications' rules for the window manager configuration."""
    found = {(entry.maximized, "<maximized>yes</maximized>") for entry in PROFILES.values()}
    found |= {(entry.bare, "<decor>no</decor>") for entry in PROFILES.values()}
    rules = [f'<application class="{name}" type="normal">{rule}</application>' for name, rule in sorted(found) if name]
    return "\n    ".join(rules)


def environment() -> dict[str, str]:
    """Return the variables that applications are started with."""
    return {name: text for entry in PROFILES.values() for name, text in entry.environment.items()}
