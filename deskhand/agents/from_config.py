"""What an agent needs besides its settings, from them or from the image processor of its model. Invariant: the agent knows the
size at which the model sees a screen, so that a point it is given lands where the model meant it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from deskhand.actions.formats.smart_resize import smart_resize
from deskhand.agents.history import ChunkedHistory, FullHistory, HistoryPolicy, SlidingHistory
from deskhand.config.schema import AgentConfig


def window_of(agent: AgentConfig) -> HistoryPolicy:
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
