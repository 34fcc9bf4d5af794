"""Parts of an agent that follow from its config or from the image processor of its model.

Used by the recipes. The agent needs the size of the image that the model sees to convert coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from deskhand.actions.formats.smart_resize import smart_resize
from deskhand.agents.history import ChunkedHistory, FullHistory, HistoryPolicy, SlidingHistory
from deskhand.config.schema import AgentConfig


def build_history(agent: AgentConfig) -> HistoryPolicy:
    """Return the history policy of the config."""
    if agent.history == "full":
        return FullHistory()
    return (
        SlidingHistory(agent.sliding_turns)
        if agent.history == "sliding"
        else ChunkedHistory(agent.history_max_turns, agent.history_keep_turns)
    )


def model_image_size(image_processor: Any) -> Callable[[int, int], tuple[int, int]]:
    """Return the function from screen size to model image size of a Qwen-VL image processor."""
    factor, size = image_processor.patch_size * image_processor.merge_size, image_processor.size
    return partial(smart_resize, factor=factor, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"])
