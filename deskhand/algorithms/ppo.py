"""Proximal policy optimisation with a critic. Invariant: with all discounts and lambdas 1, an advantage is the return minus the
value, whatever the values say of the tokens in between.

The tokens of an episode are one sequence in the order of time, over all its replies. Between two replies the desktop moves on; that
is the step of the environment, and it has a discount and a lambda of its own:

    delta_t = r_t + gamma_t * V_{t+1} - V_t
    A_t     = delta_t + gamma_t * lambda_t * A_{t+1}
    gamma_t, lambda_t = turn_discount, turn_lambda   when t is the last token of its reply, else token_discount, token_lambda

After the last token the value is 0: an episode that runs out of steps is scored on its end state like any other. The policy's
loss is `objective.clipped_loss` on the whitened advantages, the critic's `value_loss`.

Sources: PPO (arXiv:1707.06347), GAE (arXiv:1506.02438, equation 16); tokens and turns with discounts apart, VAGEN's bi-level GAE
(arXiv:2510.16907); the clipped value loss is that of OpenAI's baselines (ppo2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deskhand.algorithms.arrays import namespace
from deskhand.algorithms.base import Algorithm

PPO = Algorithm(
    "ppo", advantages=None, ratio_level="token", loss_norm="episode", clip_ratio_low=0.2, clip_ratio_high=0.2
)


@dataclass(frozen=True, slots=True)
class Estimates:
    """float64[T] each. `returns` = advantages + values: what the critic is to learn."""

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
    """Generalised advantages of one episode's sampled tokens.

    `rewards`: float[T], what came with each token (an episode's score lies on its last token); `values`: float[T], the critic's
    value of the state in which each token was sampled; `turns`: int[T], never falling, the reply of each token.
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
    """`(A - mean) / (population standard deviation + epsilon)` over all entries; equal ones become 0."""
    centred = advantages - advantages.mean() if advantages.size else advantages
    return centred / (centred.std() + epsilon) if advantages.size else advantages


def value_loss(values: Any, values_old: Any, returns: Any, clip: float | None = 0.2) -> Any:
    """Per token: `max((V - R)**2, (V_old + clip(V - V_old, -c, c) - R)**2) / 2`; without `clip`, `(V - R)**2 / 2`."""
    plain = (values - returns) ** 2
    if clip is None:
        return 0.5 * plain
    xp = namespace(values)
    held = values_old + xp.clip(values - values_old, -clip, clip)
    return 0.5 * xp.maximum(plain, (held - returns) ** 2)
