"""Dr.GRPO: GRPO without its two biases, so a token has the same weight in short and long episodes.

    A_i = r_i - mean(r)                             no division by the group's standard deviation
    loss = sum over tokens / (constant * episodes)  no division by the episode's own length

Implemented by `grpo.group_advantages(..., normalize="none")` and `objective.token_weights(..., divisor=constant)`.

Source: Liu et al., "Understanding R1-Zero-Like Training" (arXiv:2503.20783, section 3.2 and appendix A).
"""

from __future__ import annotations

import numpy as np

from deskhand.algorithms.base import algorithm
from deskhand.algorithms.grpo import group_advantages


@algorithm("dr_grpo", loss_norm="constant", clip_ratio_low=0.2, clip_ratio_high=0.28, is_centered=True)
def dr_grpo(rewards: np.ndarray) -> np.ndarray:
    """Return the rewards minus the mean of the group."""
    return group_advantages(rewards, "none")
