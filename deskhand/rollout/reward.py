"""Rewards of your own and penalties for long replies, computed from a judged episode. The score stays what the judge
said."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from deskhand import registry
from deskhand.algorithms.dapo import overlong_penalty
from deskhand.errors import ConfigError
from deskhand.rollout.episode_record import EpisodeResult

RewardFunction = Callable[[EpisodeResult], float]


def reward(function: RewardFunction) -> RewardFunction:
    """Mark a function from a judged episode to its reward, and register it by its name.

    Examples:
        >>> @reward
        ... def shorter(episode):
        ...     return episode.score - 0.01 * len(episode.steps)
    """
    registry.register("reward", getattr(function, "__name__", type(function).__name__), function)
    return function


def load_reward(ref: str | None) -> RewardFunction | None:
    """The function that `reward` names. Raises `ConfigError`."""
    if ref is None:
        return None
    found = registry.resolve("reward", ref)
    if not callable(found) or inspect.isclass(found) or inspect.iscoroutinefunction(found):
        raise ConfigError(f"reward: {ref} must be a plain function from an episode to a number")
    return cast(RewardFunction, found)


def with_overlong_penalty(
    function: RewardFunction | None, max_length: int, buffer_length: int, factor: float
) -> RewardFunction | None:
    """Return `function` (None: the judge's reward) plus `factor` times the penalty of the episode's longest reply.

    `max_length`: token limit of a reply. See `algorithms.dapo.overlong_penalty`; a buffer of 0 changes nothing.
    """
    if buffer_length == 0:
        return function

    def shaped(episode: EpisodeResult) -> float:
        base = episode.reward if function is None else function(episode)
        longest = max((len(call.completion.token_ids) for call in episode.graph.calls), default=0)
        return float(base or 0.0) + factor * overlong_penalty(longest, max_length, buffer_length)

    return shaped if function is None else functools.wraps(function)(shaped)


async def apply_reward(function: RewardFunction | None, result: EpisodeResult) -> EpisodeResult:
    """The episode with the reward that `function` gives it; errored episodes never reach it.

    Raises `ConfigError` that names the function if it fails or returns no finite number.
    """
    if function is None or result.reward is None:
        return result
    name = f"reward: {getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    try:
        value = float(await asyncio.to_thread(function, result))
    except Exception as error:
        raise ConfigError(f"{name} raised {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not math.isfinite(value):
        raise ConfigError(f"{name} must return a finite number, got {value} for task {result.task_id}")
    return replace(result, reward=value, reward_terms={**result.reward_terms, "judge": result.reward})
