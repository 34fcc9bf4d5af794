"""Virtual environments for vLLM, SGLang, AReaL and OSWorld's evaluators, created by `scripts/environment`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from deskhand.errors import ConfigError


def newest_venv(name: str, environment: Mapping[str, str]) -> Path:
    """Return the newest environment created by `scripts/environment NAME`. Raises `ConfigError` if there is none."""
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", "~"), ".cache")
    folder = Path(environment.get("DESKHAND_VENV_DIR") or Path(home, "deskhand", "environments"))
    markers = [path for path in folder.glob(f"{name}-*/complete") if "-" not in path.parent.name[len(name) + 1 :]]
    if not markers:
        raise ConfigError(f"{folder}: no environment for {name}; create one with scripts/environment {name}")
    return max(markers, key=lambda path: path.stat().st_mtime).parent
