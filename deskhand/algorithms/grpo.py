"""Group-relative policy optimization (GRPO).

    A_i = (r_i - mean(r)) / (std(r) + epsilon)      over the scored episodes of one task; every token of episode i has
    A_i

The loss is `objective.clipped_loss`, averaged over the tokens of an episode, then over episodes (`loss_norm`).

Source: DeepSeekMath (arXiv:2402.03300, section 4.1). As in DAPO (arXiv:2503.14476, section 3.1),
the clip bounds differ and there is no KL term by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from deskhand.algorithms.base import algorithm

ZERO_VARIANCE = 1e-8
"""Maximum difference of equal rewards."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """`values`: float64[..., N], 0 where masked; `zero_variance`: bool[...], groups without signal."""

    values: np.ndarray
    zero_variance: np.ndarray


def group_advantages(
    rewards: Any, mask: Any, normalize: Literal["std", "none"] = "std", epsilon: float = 1e-6
) -> Advantages:
    """Return the advantages within groups, along the last axis.

    A group with fewer than two scored members or with equal rewards has advantages 0.

    Args:
        rewards: float[..., N]; masked entries are ignored.
        mask: bool[..., N], True for scored members.
        normalize: "none" skips the division by the population standard deviation (Dr.GRPO).

    Raises:
        ValueError: A scored reward is not finite.
    """
    mask = np.asarray(mask, dtype=bool)
    rewards = np.where(mask, np.asarray(rewards, dtype=np.float64), 0.0)
    if not np.isfinite(rewards).all():
        raise ValueError("a scored reward is not finite")
    count = mask.sum(-1, keepdims=True)
    centered = np.where(mask, rewards - rewards.sum(-1, keepdims=True) / np.maximum(count, 1), 0.0)
    spread = np.where(mask, rewards, -np.inf).max(-1, initial=-np.inf) - np.where(mask, rewards, np.inf).min(
        -1, initial=np.inf
    )
    zero_variance = (count[..., 0] < 2) | (spread <= ZERO_VARIANCE)
    if normalize == "std":
        centered = centered / (np.sqrt((centered**2).sum(-1, keepdims=True) / np.maximum(count, 1)) + epsilon)
    return Advantages(np.where(zero_variance[..., None], 0.0, centered), zero_variance)


@algorithm("grpo", clip_ratio_low=0.2, clip_ratio_high=0.28)
def grpo(rewards: np.ndarray) -> np.ndarray:
    """Return the rewards minus the mean of the group, divided by its standard deviation."""
    return group_advantages(rewards, np.ones(len(rewards), dtype=bool)).values
