"""All application profiles by name.

Every home contains the files of all of them, so it does not depend on what is installed.
"""

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


def home_files() -> dict[str, str]:
    """Return the files of a fresh home for all applications, by relative path."""
    files = {path: text for entry in PROFILES.values() for path, text in entry.files.items()}
    default_applications = [f"{mime}={entry.desktop_entry}" for entry in PROFILES.values() for mime in entry.mime_types]
    return files | {".config/mimeapps.list": "\n".join(["[Default Applications]", *default_applications, ""])}


def window_rules() -> str:
    """Return the applications' rules for the window manager configuration."""
    classes = sorted({entry.maximized for entry in PROFILES.values() if entry.maximized})
    rules = [f'<application class="{name}" type="normal"><maximized>yes</maximized></application>' for name in classes]
    return "\n    ".join(rules)


def environment() -> dict[str, str]:
    """Return the variables that applications are started with."""
    return {name: text for entry in PROFILES.values() for name, text in entry.environment.items()}
