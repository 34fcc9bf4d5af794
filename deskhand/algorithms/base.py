"""Algorithms: the `Algorithm` class, the decorator `algorithm`, and `get_algorithm` by name or import path.

An algorithm is a function from the rewards of one group to their advantages, with some choices: probability ratios per
token or per reply, the loss, how the losses of tokens are summed, the clip bounds, and the updates per step. All share
`objective`. TRL's and verl's names of the choices are in docs/training.md.
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


LossNorm = Literal["episode", "token", "constant", "sum"]
"""What a token's loss is divided by; see `objective.token_weights`."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm with its defaults."""

    name: str
    advantages: GroupAdvantages | None
    """None: the baseline is a critic."""
    ratio_level: Literal["token", "reply"]
    """Unit of the probability ratio."""
    loss_norm: LossNorm
    clip_ratio_low: float
    clip_ratio_high: float
    is_centered: bool = False
    """Whether the advantages of a group sum to 0 and have the order of its rewards; the trainer then checks both."""
    policy_loss: Literal["clip", "cispo"] = "clip"
    """PPO's clipped surrogate, or CISPO's clipped weight of a policy gradient."""
    normalize_batch: bool = False
    """Whether the advantages of a step are centered and divided by their standard deviation over its episodes."""
    num_minibatches: int = 1
    """Default of `trainer.num_minibatches`."""
    step_discount: float | None = None
    """Discount of the returns whose advantages among equal states are added to each reply's (`gigpo`); None adds
    none."""
    step_weight: float = 1.0
    """Weight of these advantages."""

    @property
    def uses_critic(self) -> bool:
        return self.advantages is None

    @property
    def trains_equal_rewards(self) -> bool:
        """Whether a group with equal rewards has a gradient, because its baseline is not the group."""
        return self.uses_critic or (self.normalize_batch and not self.is_centered)

    @property
    def __wrapped__(self) -> GroupAdvantages | None:
        return self.advantages

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        """Return the advantages of one group. Raises `ValueError` for an algorithm with a critic."""
        if self.advantages is None:
            raise ValueError(f"{self.name} has no group baseline: its advantages come from a critic")
        return self.advantages(rewards)


def algorithm(  # noqa: PLR0913
    name: str,
    *,
    ratio_level: Literal["token", "reply"] = "token",
    loss_norm: LossNorm = "episode",
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    is_centered: bool = False,
    policy_loss: Literal["clip", "cispo"] = "clip",
    normalize_batch: bool = False,
    num_minibatches: int = 1,
    step_discount: float | None = None,
    step_weight: float = 1.0,
) -> Callable[[GroupAdvantages], Algorithm]:
    """Make an algorithm of a function from rewards to advantages; `trainer.algorithm` takes its name or import path.

    Examples:
        >>> @algorithm("best_of_group")
        ... def best_of_group(rewards):
        ...     return rewards - rewards.max()
    """

    def make(advantages: GroupAdvantages) -> Algorithm:
        made = Algorithm(
            name,
            advantages,
            ratio_level,
            loss_norm,
            clip_ratio_low,
            clip_ratio_high,
            is_centered,
            policy_loss,
            normalize_batch,
            num_minibatches,
            step_discount,
            step_weight,
        )
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
