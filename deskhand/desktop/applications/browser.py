"""Chromium profiles, as a browser and as one page without a browser around it.

The browser opens on a blank page, shows no prompts and sends no background requests.
"""

from __future__ import annotations

from deskhand.desktop.applications.profile import Profile

DISABLED_FEATURES = (
    "Translate",
    "MediaRouter",
    "OptimizationHints",
    "GlobalMediaControls",
    # Chromium draws the list under the address bar itself instead of in two web pages of its own, which are loaded at
    # every start: 430 of 1,020 ms of the first process's processor time (`benchmarks.demo_parts --programs`).
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
)
FLAGS = (
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--disable-smooth-scrolling",
    f"--disable-features={','.join(DISABLED_FEATURES)}",
    "--hide-crash-restore-bubble",
    "--force-color-profile=srgb",
)
"""Settings that its preferences cannot express; part of the profile's `argv`."""

SHELL_FLAGS = (
    "--content-shell-hide-toolbar",
    "--disable-gpu",
    "--disable-smooth-scrolling",
    "--force-color-profile=srgb",
)
_WITHOUT_NAMESPACES = """#!/bin/sh
exec /usr/bin/{} --no-sandbox --test-type "$@"
"""
"""Its own sandbox needs namespaces; `--test-type` hides the warning about its absence."""

CHROMIUM = Profile(
    name="chromium",
    summary="web browser",
    packages=("chromium", "socat"),  # OSWorld's tasks forward the debugger port with socat
    argv=("chromium", *FLAGS),
    window="chromium",
    plain_wrappers={"chromium": _WITHOUT_NAMESPACES.format("chromium")},
    mime_types=("text/html", "application/xhtml+xml", "x-scheme-handler/http", "x-scheme-handler/https"),
    desktop_entry="chromium.desktop",
    maximized="Chromium",
    groups=("browser",),
)

CHROMIUM_SHELL = Profile(
    name="chromium-shell",
    summary="a single web page, without tabs, menus, keys of a browser or developer tools",
    packages=("chromium-shell",),
    argv=("chromium-shell", *SHELL_FLAGS, "about:blank"),
    window="chromium-content_shell",
    plain_wrappers={"chromium-shell": _WITHOUT_NAMESPACES.format("chromium-shell")},
    bare="chromium-content_shell",
    groups=("browser",),
)
PROFILES = (CHROMIUM, CHROMIUM_SHELL)
