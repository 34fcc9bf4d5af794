"""Losses that all algorithms share, for numpy and torch. This module does not import torch.

Invariant: episodes have equal weight, whatever their length and their split into sequences.

Sources: clipping, PPO (arXiv:1707.06347, equation 7); separate bounds, DAPO (arXiv:2503.14476, section 3.1); dual clip,
Ye et al. (arXiv:1912.09729, equation 5); decoupled behavior and proximal policies, Hilton et al. (arXiv:2110.00641) as
in AReaL (arXiv:2505.24298, section 5.2); ratios of replies, GSPO (`algorithms.gspo`); bounds on both sides of the
importance weight, IcePop (arXiv:2510.18855, section 3.2).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


def namespace(array: Any) -> Any:
    """Return torch for tensors, numpy for everything else."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else np


def kl_estimate(logprobs_p: Any, logprobs_q: Any, estimator: Literal["k1", "k2", "k3"] = "k3") -> Any:
    """Return nats per token; the mean over tokens sampled from q estimates KL(q || p).

    With `d = log p(x) - log q(x)` (Schulman, "Approximating KL divergence", 2020):

        k1 = -d              unbiased, may be negative
        k2 = d**2 / 2        biased, never negative; its gradient is that of KL(p || q) for samples of p
        k3 = exp(d) - 1 - d  unbiased, never negative

    With p the reference policy and q the new one, k3 is GRPO's penalty (arXiv:2402.03300, equation 4).
    """
    difference = logprobs_p - logprobs_q
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference**2
    return namespace(difference).expm1(difference) - difference


def token_weights(
    episodes: Sequence[str],
    token_counts: Sequence[int],
    weights: Sequence[float],
    divisor: float | None = None,
    norm: Literal["episode", "token", "constant", "sum"] | None = None,
) -> np.ndarray:
    """Return factors on the token losses of sequences: the weight of the sequence's episode, divided by

        episode   tokens of the episode * episodes: the mean over episodes of token means
        token     tokens of all episodes: the mean over tokens (DAPO)
        constant  divisor * episodes (Dr.GRPO)
        sum       episodes: the mean over episodes of token sums (RLOO)

    Each sequence has an episode, a number of trained tokens and the weight of its episode; without trained tokens the
    factor is 0. `norm` None is "constant" with a divisor and "episode" without.
    """
    norm = norm or ("constant" if divisor else "episode")
    tokens: Counter[str] = Counter()
    for episode, count in zip(episodes, token_counts, strict=True):
        tokens[episode] += count
    count, total = len(tokens), tokens.total()

    def divided_by(episode: str) -> float:
        per_episode = {"episode": tokens[episode], "constant": divisor or 1.0, "sum": 1.0}
        return total if norm == "token" else per_episode[norm] * count

    return np.array(
        [
            weight / divided_by(episode) if tokens[episode] else 0.0
            for episode, weight in zip(episodes, weights, strict=True)
        ]
    )


WeightLevel = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True, slots=True)
class ClippedLoss:
    """Arrays with the shape of the log-probs. `values` is the loss per token."""

    values: Any
    ratios: Any
    """new / proximal, or new / behavior without proximal log-probs."""
    clipped: Any
    """Whether the token's gradient is 0 because of the clip or the dual clip."""
    importance_weights: Any
    """proximal / behavior within its bounds; 1 without proximal log-probs, 0 where masked by a bound."""


def clipped_loss(  # noqa: PLR0913
    logprobs_new: Any,
    logprobs_old: Any,
    advantages: Any,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    logprobs_proximal: Any = None,
    importance_weight_cap: float | None = 5.0,
    importance_weight_mode: Literal["mask", "truncate"] = "mask",
    dual_clip: float | None = None,
    replies: Any = None,
    *,
    importance_weight_min: float | None = None,
    importance_weight_level: WeightLevel = "token",
    weighted_replies: Any = None,
    policy_loss: Literal["clip", "cispo"] = "clip",
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
        importance_weight_mode: "mask" sets `w` outside its bounds to 0 (the token still counts in means), "truncate" to
            the bound.
        replies: Reply of each token, int64[N]; rho and w become geometric means over replies (`gspo`).
        importance_weight_min: Minimum `w`; None for none. Both bounds with "mask" are IcePop.
        importance_weight_level: Level of `w`: each token; the product over its reply ("sequence"); or the geometric
            mean over it ("geometric"). The last two need `weighted_replies`, like `replies`.
        policy_loss: "cispo" replaces L by `-A * clip(rho) * new`, where the clipped ratio has no gradient.

    Without proximal log-probs `w` is 1, so its bounds do nothing.
    """
    xp, zeros = namespace(logprobs_new), namespace(logprobs_new).zeros_like(logprobs_new)
    proximal = logprobs_old if logprobs_proximal is None else logprobs_proximal
    log_ratios, log_weights = logprobs_new - proximal, proximal - logprobs_old
    if replies is not None:
        log_ratios = _pooled(log_ratios, replies)
    pooled = replies if importance_weight_level == "token" else weighted_replies
    if pooled is not None:
        log_weights = _pooled(log_weights, pooled, mean=importance_weight_level != "sequence")
    ratios = xp.exp(log_ratios)
    bounded = xp.clip(ratios, 1.0 - clip_low, 1.0 + clip_high)
    plain, limited = -advantages * ratios, -advantages * bounded
    clipped, surrogate = limited > plain, xp.maximum(plain, limited)
    if policy_loss == "cispo":
        weight = bounded if xp is np else bounded.detach()
        clipped, surrogate = ratios != bounded, -advantages * weight * logprobs_new
    if dual_clip is not None:
        ceiling = dual_clip * abs(advantages) + zeros
        clipped = clipped | (surrogate > ceiling)
        surrogate = xp.minimum(surrogate, ceiling)
    weights = xp.exp(log_weights)
    high, low = importance_weight_cap, importance_weight_min
    outside = (weights > (math.inf if high is None else high)) | (weights < (0.0 if low is None else low))
    within = zeros if importance_weight_mode == "mask" else xp.clip(weights, low, high) if high or low else weights
    weights = xp.where(outside, within, weights)
    return ClippedLoss(weights * surrogate, ratios, clipped, weights)


def _pooled(values: Any, replies: Any, *, mean: bool = True) -> Any:
    """Return for each token the mean (or sum) of its reply's values, float[N]. Differentiable for tensors."""
    num_replies = int(replies.max()) + 1 if len(replies) else 0
    if namespace(values) is np:
        sums, counts = np.bincount(replies, values, num_replies), np.bincount(replies, minlength=num_replies)
    else:
        sums = values.new_zeros(num_replies).index_add(0, replies, values)
        counts = replies.bincount(minlength=num_replies)
    return sums[replies] / counts[replies] if mean else sums[replies]
