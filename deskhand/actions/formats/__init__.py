"""The dialects by name. Invariant: a dialect is imported when it is asked for, and a name that is not known is a `ConfigError`."""

from __future__ import annotations

import difflib
from importlib import import_module

from deskhand.actions.formats.base import ActionFormat
from deskhand.errors import ConfigError

_MODULES: dict[str, tuple[str, str]] = {
    "deskhand_json": ("deskhand_json", "DIALECT"),
    "openadapt_json": ("openadapt_json", "DIALECT"),
    "openadapt_text": ("openadapt_text", "DIALECT"),
    "pyautogui": ("pyautogui", "DIALECT"),
    "computer_13": ("computer_13", "DIALECT"),
    "anthropic_20241022": ("anthropic", "V20241022"),
    "anthropic_20250124": ("anthropic", "V20250124"),
    "anthropic_20251124": ("anthropic", "V20251124"),
    "openai_preview": ("openai", "PREVIEW"),
    "openai_ga": ("openai", "GA"),
    "qwen25_vl": ("qwen", "QWEN25"),
    "qwen3_vl": ("qwen", "QWEN3"),
    "gemini": ("gemini", "DIALECT"),
    "uitars_1_0": ("uitars", "V1_0"),
    "uitars_1_5": ("uitars", "V1_5"),
    "uitars_point": ("uitars", "POINT"),
    "opencua_relative": ("opencua", "RELATIVE"),
    "opencua_qwen25": ("opencua", "QWEN25"),
    "waa_navi": ("waa_navi", "DIALECT"),
}
"""Module (in this package) and attribute of every dialect."""


def available_formats() -> tuple[str, ...]:
    """The names of all dialects."""
    return tuple(_MODULES)


def suggest_format(name: str) -> str:
    """What a user may have meant by a name that is not known."""
    near = difflib.get_close_matches(name, _MODULES, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"known are: {', '.join(_MODULES)}"


def get(name: str) -> ActionFormat:
    """The dialect of a name. Raises `ConfigError` for an unknown one."""
    if name not in _MODULES:
        raise ConfigError(f"unknown dialect {name!r}; {suggest_format(name)}")
    module, attribute = _MODULES[name]
    return getattr(import_module(f"{__name__}.{module}"), attribute)
