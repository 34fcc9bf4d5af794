"""Group sequence policy optimisation. Invariant: all tokens of a reply have one ratio, so a reply is clipped whole or not at all.

    s = exp(mean over the tokens t of a reply of (new_t - old_t))
    loss of each of its tokens = max(-A * s, -A * clip(s, 1 - clip_low, 1 + clip_high))

A reply is what one model call sampled. Its tokens lie side by side in one row, so the ratio does not depend on how calls are
merged. The bounds are far narrower than those of token ratios, because a geometric mean moves far less. Averaged over tokens and
then over episodes, a reply counts by its tokens.

Source: Zheng et al. (arXiv:2507.18071, equations 5 to 7; bounds, section 5.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deskhand.algorithms.arrays import namespace, sums_by
from deskhand.algorithms.base import algorithm
from deskhand.algorithms.grpo import group_advantages


@algorithm("gspo", ratio_level="reply", clip_ratio_low=3e-4, clip_ratio_high=4e-4)
def gspo(rewards: np.ndarray) -> np.ndarray:
    """GRPO's advantages."""
    return group_advantages(rewards, np.ones(len(rewards), dtype=bool)).values


def sequence_means(values: Any, replies: Any, mask: Any) -> Any:
    """For each token the mean of `values` over the tokens of its reply that are in `mask`, float[N]; 0 for a reply without any.

    `values`: float[N], 0 where masked; `replies`: int64[N], counted from 0; `mask`: bool[N].
    """
    xp = namespace(values)
    counts = sums_by(xp.where(mask, xp.ones_like(values), xp.zeros_like(values)), replies)
    means = sums_by(values, replies) / xp.clip(counts, 1.0, None)
    return means[replies]
