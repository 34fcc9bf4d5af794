"""What is asked of an installed AReaL. Invariant: importing this room needs no AReaL; what needs it says so in one line.

AReaL is imported where it is used, never when a module of ours is: importing it takes seconds and brings ray, torch and
transformers along. `SUPPORTED` are the versions that the contract tests run against.
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
INSTALL_HINT = "make its environment with scripts/environment areal, or in one of your own: pip install areal==1.0.4"


def is_installed() -> bool:
    """Whether this Python finds AReaL; nothing is imported."""
    return "areal" in sys.modules or util.find_spec("areal") is not None


def require_areal(module: str, what: str) -> ModuleType:
    """`areal.<module>`, for `what`. Raises `ConfigError` when AReaL or something that it imports is not installed."""
    if not is_installed():
        raise ConfigError(f"{what} needs AReaL, which this Python ({sys.executable}) does not have; {INSTALL_HINT}")
    try:
        return importlib.import_module(f"areal.{module}")
    except ImportError as error:
        raise ConfigError(f"{what} needs areal.{module}, which cannot be imported ({error}); {INSTALL_HINT}") from error


def version() -> str:
    """The installed version. Raises `ConfigError` when there is none or it is one that was never tested."""
    try:
        found = metadata.version("areal")
    except metadata.PackageNotFoundError:
        raise ConfigError(f"AReaL is not installed in {sys.executable}; {INSTALL_HINT}") from None
    if found not in SUPPORTED:
        raise ConfigError(f"AReaL {found} is installed; Deskhand is tested with {', '.join(SUPPORTED)}; {INSTALL_HINT}")
    return found


def is_running() -> bool:
    """Whether this process is one of AReaL's: only then are its workflow context and its shared clients there."""
    return "areal.infra.workflow_context" in sys.modules


def is_supported_version() -> bool:
    """Whether AReaL runs the episode that asks: its clients then belong to this event loop and are closed with it.

    Agents of its subproc mode are in a process where AReaL is loaded and runs nothing.
    """
    return is_running() and require_areal("infra.workflow_context", "an episode").get().task_id is not None


def record(**values: float) -> None:
    """Add to AReaL's statistics of rollouts (of evaluation rollouts, in one); outside of AReaL it does nothing."""
    if is_running():
        context, tracker = (
            require_areal("infra.workflow_context", "statistics"),
            require_areal("utils.stats_tracker", "statistics"),
        )
        tracker.get(context.stat_scope()).scalar(**values)


def when_loop_ends(clean_up: Callable[[], Any]) -> None:
    """Have AReaL await `clean_up()` before it closes the running loop; outside of AReaL it is the caller's business."""
    if is_running():
        with contextlib.suppress(ConfigError):
            require_areal("infra.utils.concurrent", "clean-up").register_loop_cleanup(clean_up)
