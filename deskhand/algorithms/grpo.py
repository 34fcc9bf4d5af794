"""Group-relative policy optimization (GRPO).

    A_i = (r_i - mean(r)) / (std(r) + epsilon)      over the scored episodes of one task; every token of episode i has
                                                    A_i

The loss is `objective.clipped_loss`, averaged over the tokens of an episode, then over episodes (`token_weights`).

Source: DeepSeekMath (arXiv:2402.03300, section 4.1). As in DAPO (arXiv:2503.14476, section 3.1),
the clip bounds differ and there is no KL term by default.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from deskhand.algorithms.base import algorithm

ZERO_VARIANCE = 1e-8
"""Maximum difference of equal rewards."""


def group_advantages(rewards: Any, normalize: Literal["std", "none"] = "std", epsilon: float = 1e-6) -> np.ndarray:
    """Return the advantages within groups, float64[..., N]; a group with equal rewards has advantages 0.

    `normalize`: "none" skips the division by the population standard deviation (Dr.GRPO). Raises `ValueError` if a
    reward is not finite.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if not np.isfinite(rewards).all():
        raise ValueError("a scored reward is not finite")
    centered = rewards - rewards.mean(-1, keepdims=True)
    if normalize == "std":
        centered = centered / (rewards.std(-1, keepdims=True) + epsilon)
    return np.where(np.ptp(rewards, -1, keepdims=True) <= ZERO_VARIANCE, 0.0, centered)


@algorithm("grpo", clip_ratio_low=0.2, clip_ratio_high=0.28, is_centered=True)
def grpo(rewards: np.ndarray) -> np.ndarray:
    """Return the rewards minus the mean of the group, divided by its standard deviation."""
    return group_advantages(rewards)
