"""Virtual environments of heavy peers (vLLM, SGLang, AReaL, OSWorld's evaluators) that `scripts/environment` made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from deskhand.errors import ConfigError


def newest_venv(name: str, environment: Mapping[str, str]) -> Path:
    """The folder that `scripts/environment NAME` made last. Raises `ConfigError` when there is none."""
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", "~"), ".cache")
    place = Path(environment.get("DESKHAND_VENV_DIR") or Path(home, "deskhand", "environments"))
    marks = [mark for mark in place.glob(f"{name}-*/complete") if "-" not in mark.parent.name.removeprefix(f"{name}-")]
    found = sorted(marks, key=lambda mark: mark.stat().st_mtime)
    if not found:
        raise ConfigError(f"there is no environment for {name} in {place}; make one with scripts/environment {name}")
    return found[-1].parent
