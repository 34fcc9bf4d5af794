"""Proximal policy optimization (PPO) with a critic.

Advantages are estimated over all sampled tokens of an episode in order. Transitions between replies, which are the
steps of the environment, have their own discount and lambda:

    delta_t = r_t + gamma_t * V_{t+1} - V_t
    A_t     = delta_t + gamma_t * lambda_t * A_{t+1}
    gamma_t, lambda_t = turn_discount, turn_lambda   if t is the last token of its reply, else token_discount,
                                                     token_lambda

After the last token the value is 0, also if the episode ran out of steps. The policy loss is `objective.clipped_loss`
on whitened advantages, the critic's loss is `value_loss`.

Sources: PPO (arXiv:1707.06347), GAE (arXiv:1506.02438, equation 16); separate discounts of tokens and turns, VAGEN's
bi-level GAE (arXiv:2510.16907); the clipped value loss is that of OpenAI's baselines (ppo2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deskhand.algorithms.base import Algorithm
from deskhand.algorithms.objective import namespace

PPO = Algorithm(
    "ppo", advantages=None, ratio_level="token", loss_norm="episode", clip_ratio_low=0.2, clip_ratio_high=0.2
)


@dataclass(frozen=True, slots=True)
class Estimates:
    """float64[T] each; `returns` = advantages + values, the targets of the critic."""

    advantages: np.ndarray
    returns: np.ndarray


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    turns: np.ndarray,
    *,
    token_discount: float = 1.0,
    token_lambda: float = 1.0,
    turn_discount: float = 1.0,
    turn_lambda: float = 1.0,
) -> Estimates:
    """Return the generalized advantage estimates of one episode's sampled tokens.

    Args:
        rewards: float[T]; the reward of the episode is on its last token.
        values: float[T], the critic's value of the state before each token.
        turns: int[T], the reply of each token, ascending.
    """
    length = len(values)
    ends = np.append(turns[1:] != turns[:-1], True) if length else np.empty(0, dtype=bool)
    discounts = np.where(ends, turn_discount, token_discount)
    decays = discounts * np.where(ends, turn_lambda, token_lambda)
    advantages = np.zeros(length)
    following_value = following = 0.0
    for t in reversed(range(length)):
        delta = rewards[t] + discounts[t] * following_value - values[t]
        advantages[t] = following = delta + decays[t] * following
        following_value = values[t]
    return Estimates(advantages, advantages + values)


def whiten(advantages: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """Return `(A - mean) / (population standard deviation + epsilon)`; equal entries become 0."""
    centered = advantages - advantages.mean() if advantages.size else advantages
    return centered / (centered.std() + epsilon) if advantages.size else advantages


def value_loss(values: Any, values_old: Any, returns: Any, clip: float | None = 0.2) -> Any:
    """Return `max((V - R)**2, (V_old + clip(V - V_old, -c, c) - R)**2) / 2` per token; unclipped if `clip` is None."""
    plain = (values - returns) ** 2
    if clip is None:
        return 0.5 * plain
    xp = namespace(values)
    bounded = values_old + xp.clip(values - values_old, -clip, clip)
    return 0.5 * xp.maximum(plain, (bounded - returns) ** 2)
