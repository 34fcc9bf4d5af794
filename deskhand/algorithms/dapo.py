"""DAPO: GRPO whose loss is the mean over all tokens of the batch, with a higher upper clip bound, and shaped lengths.

    A_i  = (r_i - mean(r)) / (std(r) + epsilon)     as in GRPO
    loss = sum over tokens / number of tokens       so a token of a long episode counts as much as one of a short one
    clip = [1 - 0.2, 1 + 0.28]                      "clip-higher": unlikely tokens may become more likely
    r_i += overlong_penalty(length, limit, buffer)  "soft overlong punishment" (`loop.overlong_buffer_len`)

Dynamic sampling, which replaces groups with equal rewards, is what `rollout.groups` does for every algorithm with a
group baseline. There is no KL term by default.

Source: Yu et al. (arXiv:2503.14476, equations 8, 9 and 13; sections 3.1 to 3.4).
"""

from __future__ import annotations

import numpy as np

from deskhand.algorithms.base import algorithm
from deskhand.algorithms.grpo import group_advantages


@algorithm("dapo", loss_norm="token", clip_ratio_low=0.2, clip_ratio_high=0.28, is_centered=True)
def dapo(rewards: np.ndarray) -> np.ndarray:
    """Return the advantages of GRPO."""
    return group_advantages(rewards)


def overlong_penalty(length: int, max_length: int, buffer_length: int) -> float:
    """Return the addition to a reward for a reply of `length` tokens, in [-1, 0].

    It is 0 up to `max_length - buffer_length` tokens, and falls linearly to -1 at `max_length`. 0 for a buffer of 0.
    """
    if buffer_length <= 0:
        return 0.0
    return float(np.clip((max_length - buffer_length - length) / buffer_length, -1.0, 0.0))
