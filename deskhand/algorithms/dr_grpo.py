"""Dr.GRPO: GRPO without its two biases. Invariant: a token weighs the same in a short and in a long episode.

    A_i = r_i - mean(r)                             nothing is divided by the group's standard deviation
    loss = sum over tokens / (constant * episodes)  nothing is divided by the episode's own length

The advantages are `grpo.group_advantages(..., normalise="none")`, the sum `weighting.token_coefficients(..., divisor=constant)`.

Source: Liu et al., "Understanding R1-Zero-Like Training" (arXiv:2503.20783, section 3.2 and appendix A).
"""

from __future__ import annotations

import numpy as np

from deskhand.algorithms.base import algorithm
from deskhand.algorithms.grpo import group_advantages


@algorithm("dr_grpo", loss_norm="constant", clip_ratio_low=0.2, clip_ratio_high=0.28)
def dr_grpo(rewards: np.ndarray) -> np.ndarray:
    """Rewards less the group's mean."""
    return group_advantages(rewards, np.ones(len(rewards), dtype=bool), "none").values
