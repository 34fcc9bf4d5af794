"""Clipped surrogate loss shared by all algorithms, for numpy and torch.

Invariant: masked tokens have loss 0 and gradient 0, whatever their values.

Sources: clipping, PPO (arXiv:1707.06347, equation 7); separate bounds, DAPO (arXiv:2503.14476, section 3.1); dual clip,
    Ye et al.
(arXiv:1912.09729, equation 5); decoupled behavior and proximal policies, Hilton et al. (arXiv:2110.00641) as in AReaL
(arXiv:2505.24298, section 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from deskhand.algorithms.arrays import namespace
from deskhand.algorithms.gspo import sequence_means


@dataclass(frozen=True, slots=True)
class ClippedLoss:
    """Arrays with the shape of the log-probs. `values` is the loss per token, 0 where masked."""

    values: Any
    ratios: Any
    """new / proximal, or new / behavior without proximal log-probs; 1 where masked."""
    clipped: Any
    """Whether the token's gradient is 0 because of the clip or the dual clip."""
    importance_weights: Any
    """proximal / behavior after the cap; 1 without proximal log-probs, 0 where masked by the cap."""


def clipped_loss(  # noqa: PLR0913
    logprobs_new: Any,
    logprobs_old: Any,
    advantages: Any,
    mask: Any,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    logprobs_proximal: Any = None,
    importance_weight_cap: float | None = 5.0,
    importance_weight_mode: Literal["mask", "truncate"] = "mask",
    dual_clip: float | None = None,
    replies: Any = None,
) -> ClippedLoss:
    """Return the clipped surrogate of each token, decoupled if proximal log-probs are passed.

        rho = exp(new - proximal)      w = exp(proximal - old)
        L   = max(-A * rho, -A * clip(rho, 1 - clip_low, 1 + clip_high))
        L   = min(L, dual_clip * |A|)  with a dual clip (> 1): bounds the loss of a token with A < 0 and a large ratio
        loss = w * L

    Without proximal log-probs `proximal = old` and `w = 1`: plain PPO.

    Args:
        logprobs_old: Log-probs of the behavior policy, without gradient.
        logprobs_proximal: Log-probs at the center of the trust region, without gradient.
        importance_weight_cap: Maximum `w`; None for no cap.
        importance_weight_mode: "mask" sets `w` above the cap to 0 (the token still counts in means), "truncate" to the
            cap.
        replies: Reply of each token, int64[N]; rho and w become geometric means over replies (`gspo`).
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
    if importance_weight_cap is not None:
        over = weights > importance_weight_cap
        weights = xp.where(over, zeros if importance_weight_mode == "mask" else zeros + importance_weight_cap, weights)
    return ClippedLoss(xp.where(mask, weights * surrogate, zeros), ratios, clipped, weights)
