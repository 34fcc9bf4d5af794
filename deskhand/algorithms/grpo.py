"""Group-relative policy optimisation. Invariant: an episode counts once, whatever its length and however it is cut into rows.

Pure functions on arrays: numpy in, numpy out; torch in, torch out (with gradients). Nothing here knows of models.

Sources: group-relative advantages, DeepSeekMath (arXiv:2402.03300, section 4.1); without the standard deviation, Dr.GRPO
(arXiv:2503.20783, section 3.2); separate clip bounds, DAPO (arXiv:2503.14476, section 3.1); behaviour and proximal policies
apart, Hilton et al. (arXiv:2110.00641) as AReaL uses it (arXiv:2505.24298, section 5.2).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

ZERO_VARIANCE = 1e-8
"""Rewards of a group that all lie within this range of each other teach nothing."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """`values`: float64[..., N], 0 where masked; `zero_variance`: bool[...], groups whose advantages are all exactly 0."""

    values: np.ndarray
    zero_variance: np.ndarray


def group_advantages(rewards: Any, mask: Any, normalise: Literal["std", "none"] = "std", epsilon: float = 1e-6) -> Advantages:
    """Advantages of the members of groups, over the last axis: `A_i = (r_i - mean(r)) / (std(r) + epsilon)`.

    `rewards`: float[..., N] (anything where masked, NaN too); `mask`: bool[..., N], True for scored members. Mean and
    (population) standard deviation are over scored members only. `normalise="none"` leaves the division out (Dr.GRPO).
    A group with fewer than two scored members, or whose scored rewards are equal, is flagged and its advantages are 0.
    """
    mask = np.asarray(mask, dtype=bool)
    rewards = np.where(mask, np.asarray(rewards, dtype=np.float64), 0.0)
    if not np.isfinite(rewards).all():
        raise ValueError("a scored reward is not finite")
    count = mask.sum(-1, keepdims=True)
    centred = np.where(mask, rewards - rewards.sum(-1, keepdims=True) / np.maximum(count, 1), 0.0)
    spread = np.where(mask, rewards, -np.inf).max(-1, initial=-np.inf) - np.where(mask, rewards, np.inf).min(-1, initial=np.inf)
    zero_variance = (count[..., 0] < 2) | (spread <= ZERO_VARIANCE)
    if normalise == "std":
        centred = centred / (np.sqrt((centred**2).sum(-1, keepdims=True) / np.maximum(count, 1)) + epsilon)
    return Advantages(np.where(zero_variance[..., None], 0.0, centred), zero_variance)


@dataclass(frozen=True, slots=True)
class ClippedLoss:
    """Everything has the shape of the log-probs. `values` is the loss of each token (0 where masked), not reduced."""

    values: Any
    ratios: Any
    """new / proximal (or new / behaviour without proximal log-probs)."""
    clipped: Any
    """bool: the token's gradient is 0 because its ratio left the trust region in the direction that the advantage asks for."""
    behaviour_weights: Any
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
    cap_mode: Literal["drop", "truncate"] = "drop",
) -> ClippedLoss:
    """The clipped surrogate of each token, in its decoupled form when proximal log-probs are given.

        rho = exp(new - proximal)      w = exp(proximal - old)
        L   = w * max(-A * rho, -A * clip(rho, 1 - clip_low, 1 + clip_high))

    Without proximal log-probs `proximal = old` and `w = 1`: plain PPO. Tokens whose `w` exceeds `behaviour_cap` are dropped
    (`w = 0`, they still count in any mean) or have `w` truncated to the cap; `None` leaves `w` alone. All arrays are
    broadcast against `logprobs_new`; `logprobs_old` and `logprobs_proximal` must carry no gradient.
    """
    xp = _namespace(logprobs_new)
    zeros = xp.zeros_like(logprobs_new)
    proximal = logprobs_old if logprobs_proximal is None else logprobs_proximal
    ratios = xp.exp(xp.where(mask, logprobs_new - proximal, zeros))
    bounded = xp.clip(ratios, 1.0 - clip_low, 1.0 + clip_high)
    plain, limited = -advantages * ratios, -advantages * bounded
    clipped = mask & (limited > plain)
    weights = xp.exp(xp.where(mask, proximal - logprobs_old, zeros))
    if behaviour_cap is not None:
        over = weights > behaviour_cap
        weights = xp.where(over, zeros if cap_mode == "drop" else zeros + behaviour_cap, weights)
    values = xp.where(mask, weights * xp.maximum(plain, limited), zeros)
    return ClippedLoss(values, ratios, clipped, weights)


def token_coefficients(episodes: Sequence[str], token_counts: Sequence[int], weights: Sequence[float]) -> np.ndarray:
    """What to multiply each row's token losses with, so that their sum is the mean over episodes of the mean over tokens.

    One entry a row: its episode, how many of its tokens are trained, and the weight of its episode. Returns float64[rows]:
    `weight / (tokens of the episode in all its rows * number of episodes)`. Rows without trained tokens get 0.
    """
    tokens: dict[str, int] = {}
    for episode, count in zip(episodes, token_counts, strict=True):
        tokens[episode] = tokens.get(episode, 0) + count
    total = len(tokens)
    return np.array(
        [weight / (tokens[episode] * total) if tokens[episode] else 0.0 for episode, weight in zip(episodes, weights, strict=True)]
    )


def kl_estimate(logprobs_new: Any, logprobs_old: Any) -> Any:
    """`exp(d) - 1 - d` with `d = new - old`, per token: its mean over tokens sampled from old estimates KL(old || new) >= 0.

    Source: Schulman, "Approximating KL divergence" (k3), 2020.
    """
    difference = logprobs_new - logprobs_old
    return _namespace(difference).expm1(difference) - difference


def _namespace(array: Any) -> Any:
    """torch for tensors, numpy for everything else; torch is never imported here."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else np
