"""Chromium profile: opens on a blank page, shows no prompts, sends no background requests."""

from __future__ import annotations

import json

from deskhand.desktop.applications.profile import Profile

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
    "--disable-features=Translate,MediaRouter,OptimizationHints,GlobalMediaControls",
    "--hide-crash-restore-bubble",
    "--force-color-profile=srgb",
)
"""Settings that its preferences cannot express; part of the profile's `argv`."""

_PREFERENCES = {
    "bookmark_bar": {"show_on_all_tabs": False},
    "browser": {"check_default_browser": False, "has_seen_welcome_page": True},
    "credentials_enable_autosignin": False,
    "credentials_enable_service": False,
    "distribution": {"skip_first_run_ui": True, "import_bookmarks": False},
    "dns_prefetching": {"enabled": False},
    "download": {"directory_upgrade": True, "prompt_for_download": False},
    "net": {"network_prediction_options": 2},
    "privacy_sandbox": {
        "m1": {"consent_decision_made": True, "eea_notice_acknowledged": True, "row_notice_acknowledged": True}
    },
    "profile": {"exit_type": "Normal", "exited_cleanly": True, "name": "User", "password_manager_enabled": False},
    "safebrowsing": {"enabled": False},
    "search": {"suggest_enabled": False},
    "session": {"restore_on_startup": 4, "startup_urls": ["about:blank"]},
    "signin": {"allowed": False, "allowed_on_next_startup": False},
    "translate": {"enabled": False},
}
_LOCAL_STATE = {
    "background_mode": {"enabled": False},
    "hardware_acceleration_mode": {"enabled": False},
    "user_experience_metrics": {"reporting_enabled": False},
}

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
    files={
        ".config/chromium/First Run": "",
        ".config/chromium/Default/Preferences": json.dumps(_PREFERENCES),
        ".config/chromium/Local State": json.dumps(_LOCAL_STATE),
    },
    mime_types=("text/html", "application/xhtml+xml", "x-scheme-handler/http", "x-scheme-handler/https"),
    desktop_entry="chromium.desktop",
    maximized="Chromium",
    groups=("browser",),
)
