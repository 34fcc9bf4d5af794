"""Algorithms: the `Algorithm` class, the decorator `algorithm`, and `get_algorithm` by name or import path.

An algorithm is a function from the rewards of one group to their advantages, with three choices: probability ratios per
token or per reply, how an episode's losses are summed, and the clip bounds. All share `objective`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from deskhand import registry
from deskhand.errors import ConfigError

GroupAdvantages = Callable[[np.ndarray], np.ndarray]
"""float64[N] rewards of one group's scored episodes -> float64[N] advantages."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm with its defaults."""

    name: str
    advantages: GroupAdvantages | None
    """None: the baseline is a critic."""
    ratio_level: Literal["token", "reply"]
    """Unit of the probability ratio."""
    loss_norm: Literal["episode", "constant"]
    """Divisor of an episode's summed loss: its own length, or a constant."""
    clip_ratio_low: float
    clip_ratio_high: float
    is_centered: bool = False
    """Whether the advantages of a group sum to 0 and have the order of its rewards; the trainer then checks both."""

    @property
    def uses_critic(self) -> bool:
        return self.advantages is None

    @property
    def __wrapped__(self) -> GroupAdvantages | None:
        return self.advantages

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        """Return the advantages of one group. Raises `ValueError` for an algorithm with a critic."""
        if self.advantages is None:
            raise ValueError(f"{self.name} has no group baseline: its advantages come from a critic")
        return self.advantages(rewards)


def algorithm(
    name: str,
    *,
    ratio_level: Literal["token", "reply"] = "token",
    loss_norm: Literal["episode", "constant"] = "episode",
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    is_centered: bool = False,
) -> Callable[[GroupAdvantages], Algorithm]:
    """Make an algorithm of a function from rewards to advantages; `trainer.algorithm` takes its name or import path.

    Example:
        >>> @algorithm("rloo")
        ... def rloo(rewards):
        ...     return rewards - (rewards.sum() - rewards) / max(1, len(rewards) - 1)
    """

    def make(advantages: GroupAdvantages) -> Algorithm:
        made = Algorithm(name, advantages, ratio_level, loss_norm, clip_ratio_low, clip_ratio_high, is_centered)
        if not advantages.__module__.startswith("deskhand.algorithms."):
            registry.register("algorithm", name, made)
        return made

    return make


def get_algorithm(ref: str) -> Algorithm:
    """Return the algorithm of a name or import path. Raises `ConfigError` if it is not one."""
    found = registry.resolve("algorithm", ref)
    if not isinstance(found, Algorithm):
        raise ConfigError(
            f"trainer.algorithm: {ref} is not an algorithm; decorate the function with deskhand.algorithm"
        )
    return found
