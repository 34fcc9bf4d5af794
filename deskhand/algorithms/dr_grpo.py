"""Dr.GRPO: GRPO without its two biases. Invariant: a token weighs the same in a short and in a long episode.

    A_i = r_i - mean(r)                             nothing is divided by the group's standard deviation
    loss = sum over tokens / (constant * episodes)  nothing is divided by the episode's own length

The advantages are `grpo.group_advantages(..., normalise="none")`, the sum `weighting.token_coefficients(..., divisor=constant)`.

Source: Liu et al., "Understanding R1-Zero-Like Training" (arXiv:2503.20783, section 3.2 and appendix A).
"""

from __future__ import annotations

from deskhand.algorithms.base import Algorithm

ALGORITHM = Algorithm(
    "dr_grpo", baseline="group_mean", ratio_level="token", loss_norm="constant", clip_low=0.2, clip_high=0.28
)

DIVISOR_TOKENS = 256.0
"""The constant by default: about what a 10-step episode samples. It only scales the learning rate."""
