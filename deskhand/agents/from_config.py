"""How a run's agent asks, from its settings. Invariant: the agent knows the size at which the model sees a screen, so that a
point it is given lands where the model meant it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from deskhand.actions import formats
from deskhand.actions.formats.smart_resize import smart_resize
from deskhand.agents.desktop_agent import AgentConfig
from deskhand.agents.history import ChunkedHistory, FullHistory, HistoryPolicy, SlidingHistory
from deskhand.config.load import AgentSection


def build_history(agent: AgentSection) -> HistoryPolicy:
    """The agent's window over its turns."""
    if agent.history == "full":
        return FullHistory()
    return (
        SlidingHistory(agent.sliding_turns)
        if agent.history == "sliding"
        else ChunkedHistory(agent.history_max_turns, agent.history_keep_turns)
    )


def model_image_size(image_processor: Any) -> Callable[[int, int], tuple[int, int]]:
    """How a Qwen-VL image processor resizes: (width, height) of what the model sees of an image of (width, height)."""
    factor, size = image_processor.patch_size * image_processor.merge_size, image_processor.size
    return partial(smart_resize, factor=factor, least_pixels=size["shortest_edge"], most_pixels=size["longest_edge"])


def agent_of(agent: AgentSection, temperature: float, image_processor: Any) -> AgentConfig:
    """How the agent asks. `image_processor`: that of the model, which is shown what it makes of a screenshot; None for a model
    without vision."""
    return AgentConfig(
        prompt_style=agent.prompt_style,
        action_format=formats.get(agent.action_format),
        model_image_size=model_image_size(image_processor) if image_processor is not None else None,
        error_feedback=agent.error_feedback,
        history=build_history(agent),
        dropped=agent.dropped_turns,
        on_overflow=agent.on_overflow,
        max_consecutive_errors=agent.max_consecutive_errors,
        max_new_tokens=agent.max_new_tokens,
        temperature=temperature,
        top_p=agent.top_p,
        observation=agent.observation,
        noise_images=agent.noise_images,
    )
