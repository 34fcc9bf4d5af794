"""Group sequence policy optimization (GSPO): one ratio per reply, so a reply is clipped as a whole.

    s = exp(mean over the tokens t of a reply of (new_t - old_t))
    loss of each of its tokens = max(-A * s, -A * clip(s, 1 - clip_low, 1 + clip_high))

A reply is the output of one model call. The bounds are narrower than for token ratios, because a geometric mean moves
less. Losses are averaged over tokens and then over episodes, so a reply is weighted by its length.

A ratio differs from 1 only after an update within the step, so the default is four minibatches, as in the paper.

Source: Zheng et al. (arXiv:2507.18071, equations 5 to 7; bounds and minibatches, section 5.1).
"""

from __future__ import annotations

import numpy as np

from deskhand.algorithms.base import algorithm
from deskhand.algorithms.grpo import group_advantages


@algorithm("gspo", ratio_level="reply", clip_ratio_low=3e-4, clip_ratio_high=4e-4, is_centered=True, num_minibatches=4)
def gspo(rewards: np.ndarray) -> np.ndarray:
    """Return the advantages of GRPO."""
    return group_advantages(rewards)
