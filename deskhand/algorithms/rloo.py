"""RLOO: the baseline of an episode is the mean reward of the other episodes of its group.

    A_i  = r_i - sum(r_j, j != i) / (N - 1) = N / (N - 1) * (r_i - mean(r))
    loss = sum over the tokens of an episode, averaged over episodes: the whole episode is one action

The baseline does not depend on the episode's own reward, so the gradient has no bias. The division by N - 1 is that of
Dr.GRPO up to a factor; what differs is that no token is divided by a length. The clipped surrogate is that of PPO,
as in TRL, and with one update per step it is the policy gradient of the paper.

Source: Ahmadian et al. (arXiv:2402.14740, equation 8); Kool et al. (2019).
"""

from __future__ import annotations

import numpy as np

from deskhand.algorithms.base import algorithm
from deskhand.algorithms.grpo import group_advantages


@algorithm("rloo", loss_norm="sum", clip_ratio_low=0.2, clip_ratio_high=0.2, is_centered=True)
def rloo(rewards: np.ndarray) -> np.ndarray:
    """Return the rewards minus the mean of the others; 0 for a single episode."""
    count = rewards.shape[-1]
    return group_advantages(rewards, "none") * (count / max(1, count - 1))
