"""All application profiles by name."""

from __future__ import annotations

from deskhand.desktop.applications import browser, office
from deskhand.desktop.applications.profile import Profile
from deskhand.errors import ConfigError

_BASIC = (
    Profile(
        name="editor",
        summary="text editor (mousepad)",
        packages=("mousepad",),
        argv=("mousepad",),
        window="mousepad",
        mime_types=("text/plain", "text/x-python", "application/json", "text/markdown"),
        desktop_entry="org.xfce.mousepad.desktop",
        groups=("basic",),
    ),
    Profile(
        name="files",
        summary="file manager (pcmanfm)",
        packages=("pcmanfm",),
        argv=("pcmanfm",),
        window="pcmanfm",
        mime_types=("inode/directory",),
        desktop_entry="pcmanfm.desktop",
        groups=("basic",),
    ),
    Profile(
        name="terminal",
        summary="terminal (xfce4-terminal)",
        packages=("xfce4-terminal",),
        argv=("xfce4-terminal", "--disable-server"),
        window="xfce4-terminal",
        groups=("basic",),
    ),
    Profile(
        name="calculator",
        summary="calculator (galculator)",
        packages=("galculator",),
        argv=("galculator",),
        window="galculator",
        groups=("basic",),
    ),
)

_MEDIA = (
    Profile(
        name="images",
        summary="image viewer (gpicview)",
        packages=("gpicview",),
        argv=("gpicview",),
        window="gpicview",
        mime_types=("image/png", "image/jpeg", "image/gif", "image/bmp"),
        desktop_entry="gpicview.desktop",
        groups=("basic",),
    ),
    Profile(
        name="evince",
        summary="document viewer",
        packages=("evince",),
        argv=("evince",),
        window="evince",
        mime_types=("application/pdf", "application/postscript"),
        desktop_entry="org.gnome.Evince.desktop",
        maximized="Evince",
        groups=("documents",),
    ),
    Profile(
        name="gimp",
        summary="image editor",
        packages=("gimp",),
        argv=("gimp", "--no-splash"),
        window="gimp",
        desktop_entry="gimp.desktop",
        maximized="Gimp*",
        groups=("graphics",),
    ),
    Profile(
        name="vlc",
        summary="media player",
        packages=("vlc-bin", "vlc-plugin-base", "vlc-plugin-qt", "vlc-plugin-video-output"),
        argv=("vlc",),
        component="/usr/lib/*/vlc/plugins/gui/libqt_plugin.so",  # without it, `vlc` has no window
        window="vlc",
        mime_types=("video/mp4", "video/x-matroska", "video/webm", "audio/mpeg", "audio/ogg"),
        desktop_entry="vlc.desktop",
        maximized="vlc",
        groups=("media",),
    ),
)

PROFILES = {profile.name: profile for profile in (*_BASIC, *office.PROFILES, browser.CHROMIUM, *_MEDIA)}


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


def default_applications() -> str:
    """Return the text of `mimeapps.list`."""
    lines = [f"{mime}={entry.desktop_entry}" for entry in PROFILES.values() for mime in entry.mime_types]
    return "\n".join(["[Default Applications]", *lines, ""])


def window_rules() -> str:
    """Return the applications' rules for the window manager configuration."""
    classes = sorted({entry.maximized for entry in PROFILES.values() if entry.maximized})
    rules = [f'<application class="{name}" type="normal"><maximized>yes</maximized></application>' for name in classes]
    return "\n    ".join(rules)


def environment() -> dict[str, str]:
    """Return the variables that applications are started with."""
    return {name: text for entry in PROFILES.values() for name, text in entry.environment.items()}
