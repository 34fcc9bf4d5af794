"""Action formats by name. `get(name)` imports the format on first use."""

from __future__ import annotations

import difflib
from importlib import import_module

from deskhand.actions.formats.base import ActionFormat
from deskhand.errors import ConfigError

_MODULES: dict[str, tuple[str, str]] = {
    "deskhand_json": ("deskhand_json", "FORMAT"),
    "openadapt_json": ("openadapt_json", "FORMAT"),
    "openadapt_text": ("openadapt_text", "FORMAT"),
    "pyautogui": ("pyautogui", "FORMAT"),
    "computer_13": ("computer_13", "FORMAT"),
    "anthropic_20241022": ("anthropic_computer_use", "V20241022"),
    "anthropic_20250124": ("anthropic_computer_use", "V20250124"),
    "anthropic_20251124": ("anthropic_computer_use", "V20251124"),
    "openai_preview": ("openai_computer_use", "PREVIEW"),
    "openai_ga": ("openai_computer_use", "GA"),
    "qwen25_vl": ("qwen", "QWEN25"),
    "qwen3_vl": ("qwen", "QWEN3"),
    "gemini": ("gemini_computer_use", "FORMAT"),
    "uitars_1_0": ("uitars", "V1_0"),
    "uitars_1_5": ("uitars", "V1_5"),
    "uitars_point": ("uitars", "POINT"),
    "opencua_relative": ("opencua", "RELATIVE"),
    "opencua_qwen25": ("opencua", "QWEN25"),
    "waa_navi": ("waa_navi", "FORMAT"),
}
"""Module (in this package) and attribute of every format."""


def available_formats() -> tuple[str, ...]:
    return tuple(_MODULES)


def suggest_format(name: str) -> str:
    """Return a hint for an unknown format name."""
    near = difflib.get_close_matches(name, _MODULES, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"available: {', '.join(_MODULES)}"


def get(name: str) -> ActionFormat:
    """Return the format with this name. Raises `ConfigError` if it is unknown."""
    if name not in _MODULES:
        raise ConfigError(f"unknown action format {name!r}; {suggest_format(name)}")
    module, attribute = _MODULES[name]
    return getattr(import_module(f"{__name__}.{module}"), attribute)
