"""Access to an installed AReaL, imported lazily.

Importing AReaL takes seconds and loads ray, torch and transformers, so no Deskhand module imports it at the top
level. `SUPPORTED` are the versions that the contract tests run against.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from importlib import metadata, util
from types import ModuleType
from typing import Any

from deskhand.errors import ConfigError

SUPPORTED = ("1.0.4",)
INSTALL_HINT = "run scripts/environment areal, or in your own environment: pip install areal==1.0.4"


def is_installed() -> bool:
    """Return whether this Python finds AReaL, without importing it."""
    return "areal" in sys.modules or util.find_spec("areal") is not None


def require_areal(module: str, what: str) -> ModuleType:
    """Return `areal.<module>`, needed for `what`. Raises `ConfigError` if it is missing."""
    if not is_installed():
        raise ConfigError(f"{what} needs AReaL, which is not installed in {sys.executable}; {INSTALL_HINT}")
    try:
        return importlib.import_module(f"areal.{module}")
    except ImportError as error:
        raise ConfigError(f"{what} needs areal.{module}, which cannot be imported ({error}); {INSTALL_HINT}") from error


def version() -> str:
    """Return the installed version. Raises `ConfigError` if there is none or it is untested."""
    try:
        found = metadata.version("areal")
    except metadata.PackageNotFoundError:
        raise ConfigError(f"AReaL is not installed in {sys.executable}; {INSTALL_HINT}") from None
    if found not in SUPPORTED:
        raise ConfigError(
            f"AReaL {found} is not supported; Deskhand is tested with {', '.join(SUPPORTED)}; {INSTALL_HINT}"
        )
    return found


def is_running() -> bool:
    """Return whether this process belongs to AReaL, so that its workflow context and shared clients exist."""
    return "areal.infra.workflow_context" in sys.modules


def is_running_episode() -> bool:
    """Return whether AReaL runs the current episode, and so owns and closes the clients of this event loop.

    Agents in AReaL's subproc mode run in a process in which AReaL is only imported.
    """
    return is_running() and require_areal("infra.workflow_context", "an episode").get().task_id is not None


def record(**values: float) -> None:
    """Add to AReaL's rollout (or evaluation) statistics; does nothing outside of AReaL."""
    if is_running():
        scope = require_areal("infra.workflow_context", "statistics").stat_scope()
        require_areal("utils.stats_tracker", "statistics").get(scope).scalar(**values)


def when_loop_ends(clean_up: Callable[[], Any]) -> None:
    """Let AReaL await `clean_up()` before it closes the running loop; does nothing outside of AReaL."""
    if is_running():
        with contextlib.suppress(ConfigError):
            require_areal("infra.utils.concurrent", "clean-up").register_loop_cleanup(clean_up)
