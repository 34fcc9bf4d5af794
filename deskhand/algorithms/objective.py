"""The clipped surrogate that all algorithms share. Invariant: a token outside the mask has loss 0 and gradient 0, whatever it
holds.

Pure functions on arrays: numpy in, numpy out; torch in, torch out (with gradients). Nothing here knows of models.

Sources: clipping, PPO (arXiv:1707.06347, equation 7); separate bounds, DAPO (arXiv:2503.14476, section 3.1); dual clip, Ye et al.
(arXiv:1912.09729, equation 5); behaviour and proximal policies apart, Hilton et al. (arXiv:2110.00641) as AReaL uses it
(arXiv:2505.24298, section 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from deskhand.algorithms.arrays import namespace
from deskhand.algorithms.gspo import sequence_means


@dataclass(frozen=True, slots=True)
class ClippedLoss:
    """Everything has the shape of the log-probs. `values` is the loss of each token (0 where masked), not reduced."""

    values: Any
    ratios: Any
    """new / proximal (or new / behaviour without proximal log-probs); 1 where masked."""
    clipped: Any
    """bool: the token's gradient is 0 because its ratio left the trust region in the direction that the advantage asks for, or
    because the dual clip bounds its loss."""
    importance_weights: Any
    """proximal / behaviour after the cap; 1 without proximal log-probs, 0 where a token was dropped."""


def clipped_loss(
    logprobs_new: Any,
    logprobs_old: Any,
    advantages: Any,
    mask: Any,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    logprobs_proximal: Any = None,
    behaviour_cap: float | None = 5.0,
    cap_mode: Literal["mask", "truncate"] = "mask",
    dual_clip: float | None = None,
    replies: Any = None,
) -> ClippedLoss:
    """The clipped surrogate of each token, in its decoupled form when proximal log-probs are given.

        rho = exp(new - proximal)      w = exp(proximal - old)
        L   = max(-A * rho, -A * clip(rho, 1 - clip_low, 1 + clip_high))
        L   = min(L, dual_clip * |A|)  with a dual clip (> 1): bounds what a token with A < 0 and a large ratio can cost
        loss = w * L

    Without proximal log-probs `proximal = old` and `w = 1`: plain PPO. Tokens whose `w` exceeds `behaviour_cap` are dropped
    (`w = 0`, they still count in any mean) or have `w` truncated to the cap; `None` leaves `w` alone. With `replies` (int64[N],
    the reply that each token belongs to) rho and w are geometric means over the tokens of a reply (`gspo`). All arrays are
    broadcast against `logprobs_new`; `logprobs_old` and `logprobs_proximal` must carry no gradient.
    """
    xp = namespace(logprobs_new)
    zeros = xp.zeros_like(logprobs_new)
    proximal = logprobs_old if logprobs_proximal is None else logprobs_proximal
    log_ratios = xp.where(mask, logprobs_new - proximal, zeros)
    log_weights = xp.where(mask, proximal - logprobs_old, zeros)
    if replies is not None:
        log_ratios, log_weights = sequence_means(log_ratios, replies, mask), sequence_means(log_weights, replies, mask)
    ratios = xp.exp(log_ratios)
    bounded = xp.clip(ratios, 1.0 - clip_low, 1.0 + clip_high)
    plain, limited = -advantages * ratios, -advantages * bounded
    clipped = mask & (limited > plain)
    surrogate = xp.maximum(plain, limited)
    if dual_clip is not None:
        ceiling = dual_clip * abs(advantages) + zeros
        clipped = clipped | (mask & (surrogate > ceiling))
        surrogate = xp.minimum(surrogate, ceiling)
    weights = xp.exp(log_weights)
    if behaviour_cap is not None:
        over = weights > behaviour_cap
        weights = xp.where(over, zeros if cap_mode == "mask" else zeros + behaviour_cap, weights)
    return ClippedLoss(xp.where(mask, weights * surrogate, zeros), ratios, clipped, weights)
