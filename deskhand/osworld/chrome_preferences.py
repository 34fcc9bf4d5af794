"""Chrome settings in its profile, as OSWorld's getters return them.

Missing or invalid files give the setting's default, as in OSWorld.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_FONT_SIZES = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}
_MODES = {1: "light", 2: "dark"}


def _at(data: Any, *keys: str) -> Any:
    """Return the value at the keys, or None."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _json_bool(value: Any) -> str:
    return "true" if value else "false"


VALUES: dict[str, Callable[[Any], Any]] = {
    "default_search_engine": lambda data: (
        _at(data, "default_search_provider_data", "template_url_data", "short_name") or "Google"
    ),
    "profile_name": lambda data: _at(data, "profile", "name"),
    "chrome_font_size": lambda data: _at(data, "webkit", "webprefs") or _FONT_SIZES,
    "enable_do_not_track": lambda data: _json_bool(_at(data, "enable_do_not_track")),
    "enable_safe_browsing": lambda data: _json_bool(
        _at(data, "safebrowsing", "enhanced") or _at(data, "safebrowsing", "enabled")
    ),
    "new_startup_page": lambda data: _json_bool(
        _at(data, "session") is None or _at(data, "session", "restore_on_startup") == 5
    ),
    "data_delete_automacally": lambda data: _json_bool(
        _at(data, "profile", "default_content_setting_values") is not None
    ),
    "chrome_color_scheme": lambda data: _mode(data),
    "chrome_appearance_mode_ui": lambda data: _mode(data),
}
"""Value by getter type, from the profile's settings (None if there are none)."""


def value(kind: str, data: bytes | None) -> Any:
    """Return the getter's value for the bytes of `Preferences`."""
    return VALUES[kind](_parse_object(data))


def bookmarks(data: bytes | None) -> Any:
    """Return the bookmark roots; an empty list if there is no file."""
    found = _parse_object(data)
    return [] if found is None else _at(found, "roots") or {}


def _mode(data: Any) -> str:
    """Return the appearance: "light", "dark" or "system"."""
    chosen = _at(data, "browser", "theme", "color_scheme2")
    return _MODES.get(chosen if chosen is not None else _at(data, "browser", "theme", "color_scheme"), "system")


def _parse_object(data: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(data) if data else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
