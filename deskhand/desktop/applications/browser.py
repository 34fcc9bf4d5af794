"""Chromium profile: opens on a blank page, shows no prompts, sends no background requests."""

from __future__ import annotations

from deskhand.desktop.applications.profile import Profile

DISABLED_FEATURES = (
    "Translate",
    "MediaRouter",
    "OptimizationHints",
    "GlobalMediaControls",
    # Chromium draws the list under the address bar itself instead of in two web pages of its own, which are loaded at
    # every start: 430 of 1,020 ms of processor time (`benchmarks.demo_parts --programs`).
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

_WITHOUT_NAMESPACES = """#!/bin/sh
exec /usr/bin/chromium --no-sandbox --test-type "$@"
"""
"""Its own sandbox needs namespaces; `--test-type` hides the warning about its absence."""

CHROMIUM = Profile(
    name="chromium",
    summary="web browser",
    packages=("chromium", "socat"),  # OSWorld's tasks forward the debugger port with socat
    argv=("chromium", *FLAGS),
    window="chromium",
    plain_wrappers={"chromium": _WITHOUT_NAMESPACES},
    mime_types=("text/html", "application/xhtml+xml", "x-scheme-handler/http", "x-scheme-handler/https"),
    desktop_entry="chromium.desktop",
    maximized="Chromium",
    groups=("browser",),
)
