"""All profiles by name. Invariant: every home is laid out for all of them, so that a home does not depend on what is installed."""

from __future__ import annotations

from deskhand.desktop.applications import browser, media_apps, office
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

PROFILES = {profile.name: profile for profile in (*_BASIC, *office.PROFILES, browser.CHROMIUM, *media_apps.PROFILES)}


def profile(name: str) -> Profile:
    """Raises `ConfigError` for a name that is not in `PROFILES`."""
    if name not in PROFILES:
        raise ConfigError(f"application {name!r} is not known; there are {', '.join(PROFILES)}")
    return PROFILES[name]


def resolve_profiles(names: list[str]) -> list[Profile]:
    """Profiles by name or group, each once, in the table's order; "all" is all. Raises `ConfigError` for an unknown name."""
    groups = {group for entry in PROFILES.values() for group in entry.groups}
    for name in names:
        if name not in groups | {"all"}:
            profile(name)
    return [entry for entry in PROFILES.values() if "all" in names or {entry.name, *entry.groups} & set(names)]


def home_files() -> dict[str, str]:
    """Files of a fresh home for all applications, by path relative to it."""
    files = {path: text for entry in PROFILES.values() for path, text in entry.files.items()}
    opened = [f"{mime}={entry.desktop_entry}" for entry in PROFILES.values() for mime in entry.mime_types]
    return files | {".config/mimeapps.list": "\n".join(["[Default Applications]", *opened, ""])}


def window_rules() -> str:
    """What the window manager's configuration says of their windows."""
    classes = sorted({entry.maximised for entry in PROFILES.values() if entry.maximised})
    rules = [f'<application class="{name}" type="normal"><maximized>yes</maximized></application>' for name in classes]
    return "\n    ".join(rules)


def environment() -> dict[str, str]:
    """Variables that the applications are started with."""
    return {name: text for entry in PROFILES.values() for name, text in entry.environment.items()}
