"""CISPO: the probability ratio is clipped as a weight without gradient, so clipped tokens are still trained.

    w    = stop_gradient(clip(new / center, 1 - clip_low, 1 + clip_high))
    loss = -w * A * log new,  averaged over all tokens of the batch

The lower bound is not used (`clip_ratio_low` 1). The paper gives no value for the upper one; 4, a weight of at most 5,
is that of ScaleRL (arXiv:2510.13786, section 3.2) and of TRL's documentation. Advantages are those of GRPO.

Source: MiniMax-M1 (arXiv:2506.13585, equations 4 and 5).
"""

from __future__ import annotations

import numpy as np

from deskhand.algorithms.base import algorithm
from deskhand.algorithms.grpo import group_advantages


@algorithm("cispo", loss_norm="token", clip_ratio_low=1.0, clip_ratio_high=4.0, is_centered=True, policy_loss="cispo")
def cispo(rewards: np.ndarray) -> np.ndarray:
    """Return the advantages of GRPO."""
    return group_advantages(rewards)
