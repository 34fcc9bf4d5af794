"""Checks everything that a config names by import path before anything starts."""

from __future__ import annotations

from deskhand import registry
from deskhand.actions import formats
from deskhand.agents.build import build_agent
from deskhand.algorithms.base import get_algorithm
from deskhand.config.load import Config
from deskhand.errors import ConfigError
from deskhand.rollout.reward import load_reward


def check_plugins(config: Config) -> None:
    """Import what the config names. Raises `ConfigError` with the key, the reference and the import that failed."""
    action_format = formats.get(config.agent.action_format)
    for name in ("prompt", "parse", "emit"):
        if not callable(getattr(action_format, name, None)):
            raise ConfigError(f"agent.action_format: {config.agent.action_format} has no method {name}")
    build_agent(config.agent)
    load_reward(config.reward)
    get_algorithm(config.trainer.algorithm)
    backends: dict[registry.Kind, str] = {"engine": config.engine.backend, "desktop": config.desktop.backend}
    for kind, ref in backends.items():
        if not callable(registry.resolve(kind, ref)):
            raise ConfigError(f"{kind}.backend: {ref} is not a function")
