"""How a run's agent asks, from its settings. Invariant: the agent knows the size at which the model sees a screen, so that a
point it is given lands where the model meant it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from deskhand.actions import dialects
from deskhand.actions.dialects.resizing import smart_resize
from deskhand.agents.context import Full, GrowDrop, Sliding, Window
from deskhand.agents.desktop_agent import AgentConfig
from deskhand.config import AgentSection


def window_of(agent: AgentSection) -> Window:
    """The agent's window over its turns."""
    if agent.window == "full":
        return Full()
    return Sliding(agent.keep) if agent.window == "sliding" else GrowDrop(agent.grow_to, agent.drop_to)


def size_seen(image_processor: Any) -> Callable[[int, int], tuple[int, int]]:
    """How a Qwen-VL image processor resizes: (width, height) of what the model sees of an image of (width, height)."""
    factor, size = image_processor.patch_size * image_processor.merge_size, image_processor.size
    return partial(smart_resize, factor=factor, least_pixels=size["shortest_edge"], most_pixels=size["longest_edge"])


def agent_of(agent: AgentSection, temperature: float, image_processor: Any) -> AgentConfig:
    """How the agent asks. `image_processor`: that of the model, which is shown what it makes of a screenshot; None for a model
    without vision."""
    return AgentConfig(
        style=agent.style,
        dialect=dialects.get(agent.dialect),
        seen=size_seen(image_processor) if image_processor is not None else None,
        tell_errors=agent.tell_errors,
        window=window_of(agent),
        dropped=agent.dropped,
        overflow=agent.overflow,
        max_errors=agent.max_errors,
        max_tokens=agent.max_tokens,
        temperature=temperature,
        top_p=agent.top_p,
        screen=agent.screen,
        blind=agent.blind,
    )
