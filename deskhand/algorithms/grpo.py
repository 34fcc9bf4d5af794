"""Group-relative policy optimisation. Invariant: advantages of a group sum to 0, and a group of equal rewards has none.

    A_i = (r_i - mean(r)) / (std(r) + epsilon)      over the scored episodes of one task; every token of episode i has A_i

The loss is `objective.clipped_loss`, averaged over the tokens of an episode and then over episodes (`weighting`).

Source: DeepSeekMath (arXiv:2402.03300, section 4.1). The bounds of the clip are apart as in DAPO (arXiv:2503.14476, section 3.1),
and as there no KL term is on by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from deskhand.algorithms.base import algorithm

ZERO_VARIANCE = 1e-8
"""Rewards of a group that all lie within this range of each other teach nothing."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """`values`: float64[..., N], 0 where masked; `zero_variance`: bool[...], groups whose advantages are all exactly 0."""

    values: np.ndarray
    zero_variance: np.ndarray


def group_advantages(
    rewards: Any, mask: Any, normalise: Literal["std", "none"] = "std", epsilon: float = 1e-6
) -> Advantages:
    """Advantages of the members of groups, over the last axis.

    `rewards`: float[..., N] (anything where masked, NaN too); `mask`: bool[..., N], True for scored members. Mean and
    (population) standard deviation are over scored members only. `normalise="none"` leaves the division out (Dr.GRPO).
    A group with fewer than two scored members, or whose scored rewards are equal, is flagged and its advantages are 0.
    Raises `ValueError` when a scored reward is not finite.
    """
    mask = np.asarray(mask, dtype=bool)
    rewards = np.where(mask, np.asarray(rewards, dtype=np.float64), 0.0)
    if not np.isfinite(rewards).all():
        raise ValueError("a scored reward is not finite")
    count = mask.sum(-1, keepdims=True)
    centred = np.where(mask, rewards - rewards.sum(-1, keepdims=True) / np.maximum(count, 1), 0.0)
    spread = np.where(mask, rewards, -np.inf).max(-1, initial=-np.inf) - np.where(mask, rewards, np.inf).min(
        -1, initial=np.inf
    )
    zero_variance = (count[..., 0] < 2) | (spread <= ZERO_VARIANCE)
    if normalise == "std":
        centred = centred / (np.sqrt((centred**2).sum(-1, keepdims=True) / np.maximum(count, 1)) + epsilon)
    return Advantages(np.where(zero_variance[..., None], 0.0, centred), zero_variance)


@algorithm("grpo", clip_ratio_low=0.2, clip_ratio_high=0.28)
def grpo(rewards: np.ndarray) -> np.ndarray:
    """Rewards less the group's mean, divided by its standard deviation."""
    return group_advantages(rewards, np.ones(len(rewards), dtype=bool)).values
