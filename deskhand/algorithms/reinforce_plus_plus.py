"""REINFORCE++: advantages are normalized over the whole batch in place of each group.

    reinforce_plus_plus:           A_i = (r_i - mean(batch)) / (std(batch) + epsilon)
    reinforce_plus_plus_baseline:  A_i = d_i / (std(d) + epsilon),  d_i = r_i - mean(group of i)

A group's own standard deviation makes tasks that are almost solved, or almost never, weigh more; that of the batch does
not. The first has no group baseline, so groups with equal rewards are trained, too. The loss is the clipped surrogate
of PPO, averaged over all tokens of the batch. Batch statistics are over the episodes of a step, each with its weight.

Source: Hu et al. (arXiv:2501.03262, sections 3.1 and 3.2).
"""

from __future__ import annotations

import numpy as np

from deskhand.algorithms.base import algorithm
from deskhand.algorithms.grpo import ZERO_VARIANCE, group_advantages


@algorithm("reinforce_plus_plus", loss_norm="token", normalize_batch=True)
def reinforce_plus_plus(rewards: np.ndarray) -> np.ndarray:
    """Return the rewards; `normalize_over_batch` follows."""
    return np.asarray(rewards, dtype=np.float64)


@algorithm("reinforce_plus_plus_baseline", loss_norm="token", normalize_batch=True, is_centered=True)
def reinforce_plus_plus_baseline(rewards: np.ndarray) -> np.ndarray:
    """Return the rewards minus the mean of the group; `normalize_over_batch` follows."""
    return group_advantages(rewards, "none")


def normalize_over_batch(advantages: np.ndarray, epsilon: float = 1e-6, *, is_centered: bool = False) -> np.ndarray:
    """Return `(A - mean) / (population standard deviation + epsilon)`, float64[N]; equal entries become 0.

    `is_centered`: the advantages of every group sum to 0, so 0 is the mean. That of the batch would be another one if
    stale members of a group are left out, and the sums of all other groups would no longer be 0.
    """
    advantages = np.asarray(advantages, dtype=np.float64)
    if advantages.size == 0 or np.ptp(advantages) <= ZERO_VARIANCE:
        return np.zeros_like(advantages)
    differences = advantages if is_centered else advantages - advantages.mean()
    return differences / (np.sqrt(np.mean(differences**2)) + epsilon)
