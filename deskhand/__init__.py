"""Train vision-language models to use a computer. Everything that users build with, imported when it is first used.

Only the names in `__all__` are covered by semantic versioning. `deskhand.api` has the functions, docs/extending.md
the examples.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deskhand.actions.formats import action_format
    from deskhand.actions.ops import Op
    from deskhand.agents.desktop_agent import DesktopAgent
    from deskhand.agents.episode_context import Agent, EpisodeContext
    from deskhand.algorithms.base import algorithm
    from deskhand.api import (
        TaskSource,
        TrainResult,
        evaluate,
        evaluate_async,
        load_config,
        load_episode,
        load_tasks,
        open_run,
        run_episode,
        train,
        train_async,
    )
    from deskhand.config.schema import AgentConfig, Config
    from deskhand.desktop.base import Frame
    from deskhand.desktop.base import StageableDesktop as Desktop
    from deskhand.errors import AgentError, ConfigError, DeskhandError, EvaluatorError, HealthError, InfrastructureError
    from deskhand.recipes.step_report import StepReport
    from deskhand.registry import register
    from deskhand.rollout.episode_record import EpisodeResult as Episode
    from deskhand.rollout.eval_loop import EvalReport
    from deskhand.rollout.reward import reward
    from deskhand.tasks.task import CheckResult, Task, task_family

    __version__: str

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentError",
    "CheckResult",
    "Config",
    "ConfigError",
    "DeskhandError",
    "Desktop",
    "DesktopAgent",
    "Episode",
    "EpisodeContext",
    "EvalReport",
    "EvaluatorError",
    "Frame",
    "HealthError",
    "InfrastructureError",
    "Op",
    "StepReport",
    "Task",
    "TaskSource",
    "TrainResult",
    "__version__",
    "action_format",
    "algorithm",
    "evaluate",
    "evaluate_async",
    "load_config",
    "load_episode",
    "load_tasks",
    "open_run",
    "register",
    "reward",
    "run_episode",
    "task_family",
    "train",
    "train_async",
]
_ORIGINS = {
    "Agent": "agents.episode_context",
    "AgentConfig": "config.schema",
    "CheckResult": "tasks.task",
    "Config": "config.schema",
    "Desktop": "desktop.base:StageableDesktop",
    "DesktopAgent": "agents.desktop_agent",
    "Episode": "rollout.episode_record:EpisodeResult",
    "EpisodeContext": "agents.episode_context",
    "EvalReport": "rollout.eval_loop",
    "Frame": "desktop.base",
    "Op": "actions.ops",
    "StepReport": "recipes.step_report",
    "Task": "tasks.task",
    "action_format": "actions.formats",
    "algorithm": "algorithms.base",
    "register": "registry",
    "reward": "rollout.reward",
    "task_family": "tasks.task",
}
"""Module, and attribute if it has another name; errors are in `errors`, everything else in `api`."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("deskhand")
    if name not in __all__:
        raise AttributeError(f"module 'deskhand' has no attribute {name!r}")
    module, _, attribute = _ORIGINS.get(name, "errors" if name.endswith("Error") else "api").partition(":")
    value = getattr(import_module(f"deskhand.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
