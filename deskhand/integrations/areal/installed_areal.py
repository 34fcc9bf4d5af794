"""Access to an installed AReaL, imported lazily.

Importing AReaL takes seconds and loads ray, torch and transformers, so no Deskhand module imports it at the top
level. The contract tests run against version 1.0.4 and, given a source tree, against 2.x.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any

from deskhand.errors import ConfigError
from deskhand.venvs import install_command

SUPPORTED = re.compile(r"1\.0\.4|2\.[0-9.]+")
SUPPORTED_VERSIONS = "1.0.4 and 2.x"
INSTALL_HINT = f"create an environment with {install_command('areal')}"


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
    """Return the version that this Python imports. Raises `ConfigError` if there is none or it is not supported."""
    found = find_version()
    if found is None:
        raise ConfigError(f"AReaL is not installed in {sys.executable}; {INSTALL_HINT}")
    if not SUPPORTED.fullmatch(found):
        raise ConfigError(f"AReaL {found} is not supported, only {SUPPORTED_VERSIONS}; {INSTALL_HINT}")
    return found


def find_version() -> str | None:
    """Return the version of the AReaL that this Python imports, None without one.

    A source tree before the installed package, as on PYTHONPATH, has the version of its own pyproject.toml.
    """
    spec = util.find_spec("areal")
    if spec is None or spec.origin is None:
        return None
    project = Path(spec.origin).parents[1] / "pyproject.toml"
    if project.is_file():
        with project.open("rb") as file:
            return str(tomllib.load(file).get("project", {}).get("version"))
    try:
        return metadata.version("areal")
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def exports_images(backend: str, stack: str = "v1") -> bool:
    """Return whether the proxy of this AReaL trains rows with their images.

    `backend`: `rollout.backend`, such as `sglang:d4`. `stack`: `rollout._version`. The client processes images since
    upstream's #1606; the proxy of the v2 stack hands it a processor since #1694; vLLM samples from the same tokens
    since #1643.
    """
    parameters = inspect.signature(require_areal("experimental.openai.client", "a run").ArealOpenAI).parameters
    if "require_multimodal_processor" not in parameters:
        return False
    if stack == "v2":
        proxy = require_areal("v2.inference_service.data_proxy.tokenizer_proxy", "a run")
        if not hasattr(proxy.TokenizerProxy, "processor"):
            return False
    if backend.startswith("vllm"):
        return "expected_token_ids" in inspect.getsource(require_areal("engine.vllm_remote", "a run"))
    return True


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
