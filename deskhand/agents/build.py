"""The agent that a config names."""

from __future__ import annotations

import inspect
from typing import cast

from deskhand import registry
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.agents.episode_context import Agent, EpisodeSettings, ImageSize
from deskhand.config.schema import AgentConfig
from deskhand.errors import ConfigError


def build_agent(
    config: AgentConfig, *, model: str = "deskhand", image_size: ImageSize | None = None
) -> tuple[Agent, EpisodeSettings]:
    """An agent, with what all its episodes have in common. Raises `ConfigError`."""
    settings = EpisodeSettings(config, model, image_size)
    found = registry.resolve("agent", config.class_)
    if found is DesktopAgent:
        return DesktopAgent(config, model=model, model_image_size=image_size), settings
    if inspect.isclass(found) or not hasattr(found, "run"):
        try:
            found = found(**config.options)
        except Exception as error:
            name = f"agent.class: {config.class_} with agent.options {config.options}"
            raise ConfigError(f"{name} raised {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not inspect.iscoroutinefunction(getattr(found, "run", None)):
        raise ConfigError(f"agent.class: {config.class_} has no `async def run(self, episode)`")
    return cast(Agent, found), settings
