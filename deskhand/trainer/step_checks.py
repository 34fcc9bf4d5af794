"""Invariants of a training step, checked in every step.

Used by `trainer.trainer`. An inconsistent episode is dropped and counted by cause (`check_episodes`); an inconsistent
step is a defect of the software or of a custom algorithm and stops the run with `HealthError`, which names the
invariant. The checks read the recorded data and elementwise gradients only; no model is run.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from deskhand.algorithms.base import Algorithm, LossNorm
from deskhand.algorithms.objective import ClippedLoss
from deskhand.algorithms.ppo import whiten
from deskhand.errors import HealthError, RecordError
from deskhand.recorder.graph import Sequence as Row
from deskhand.recorder.invariants import check_rows
from deskhand.trainer.advantages import AdvantageEstimate
from deskhand.trainer.batch import TrainingSample

_ROUNDING = 1e-4
_SMALLEST = 1e-30
"""Smaller products of advantage and weights may have a gradient of zero in float32."""


def check_episodes(samples: Sequence[TrainingSample], check: Callable[[Row], None]) -> dict[str, str]:
    """Return the causes of the episodes that must not be trained, by episode. `check` raises `RecordError` for one
    sequence. Raises `ValueError` if the sequences of an episode differ in advantage, weight or reward."""
    causes: dict[str, str] = {}
    episodes: defaultdict[str, list[TrainingSample]] = defaultdict(list)
    for sample in samples:
        episodes[sample.episode_id].append(sample)
    for episode, own in episodes.items():
        values = {(sample.advantage, sample.weight, sample.reward) for sample in own}
        if len(values) > 1:
            raise ValueError(f"episode {episode}: sequences differ in advantage, weight or reward")
        if not all(
            map(math.isfinite, (*next(iter(values)), *(one for sample in own for one in sample.reply_advantages)))
        ):
            raise ValueError(f"episode {episode}: advantage, weight and reward are not finite: {next(iter(values))}")
        try:
            for sample in own:
                check(sample.sequence)
                sample.reply_lengths()
            check_rows([sample.sequence for sample in own], own[0].graph)
        except RecordError as error:
            causes[episode] = error.cause
    return causes


def check_groups(samples: Sequence[TrainingSample], algorithm: Algorithm) -> None:
    """Check groups of which every episode is trained, if the algorithm declares its advantages to be centered: the sum
    of advantage times weight is 0, and advantages have the order of the rewards."""
    if not algorithm.is_centered:
        return
    groups: defaultdict[str, dict[str, TrainingSample]] = defaultdict(dict)
    for sample in samples:
        groups[sample.group_id][sample.episode_id] = sample
    for group_id, members in groups.items():
        episodes = sorted(members.values(), key=lambda sample: sample.reward)
        if not group_id or len(episodes) < episodes[0].group_size:
            continue
        worth = np.array([sample.advantage * sample.weight for sample in episodes])
        if abs(worth.sum()) > _ROUNDING * max(1e-6, np.abs(worth).sum()):
            raise _violation("advantages_sum", f"group {group_id}: advantages sum to {worth.sum():.3g} instead of 0")
        advantages, rewards = np.array([(sample.advantage, sample.reward) for sample in episodes]).T
        slack = _ROUNDING * np.abs(advantages).max()
        ties = np.diff(rewards) <= _ROUNDING * np.ptp(rewards)
        steps = np.diff(advantages)
        if (steps < -slack).any() or (np.abs(steps[ties]) > slack).any():
            raise _violation("advantages_order", f"group {group_id}: advantages do not have the order of the rewards")


def check_estimate(samples: Sequence[TrainingSample], estimate: AdvantageEstimate, *, has_critic: bool) -> None:
    """Check that every trained token has its own advantage: in the order of the advantages of episodes, or of replies
    with `gigpo`, or with a critic the whitened return minus value of the token; the last return of an episode is its
    reward."""
    lengths = [sum(sample.sequence.loss_mask) for sample in samples]
    if [len(row) for row in estimate.advantages] != lengths:
        raise _violation("advantages_aligned", "an episode has not one advantage per trained token")
    if not has_critic:
        pairs = [
            (own, part)
            for s, row in zip(samples, estimate.advantages, strict=True)
            for own, part in zip(s.advantages_by_reply(), np.split(row, np.cumsum(s.reply_lengths())), strict=False)
        ]
        found = np.array(sorted((own, row.min(), row.max()) for own, row in pairs)).reshape(-1, 3)
        steps, ties = np.diff(found[:, 1]), np.diff(found[:, 0]) == 0
        if (found[:, 1] != found[:, 2]).any() or (steps < 0).any() or steps[ties].any():
            raise _violation("advantages_aligned", "an episode or reply has the advantage of another one")
        return
    if not sum(lengths):
        return
    if [len(row) for row in (*estimate.returns, *estimate.values)] != lengths * 2:
        raise _violation("advantages_aligned", "an episode has not one return and value per trained token")
    returns, values = np.concatenate(estimate.returns), np.concatenate(estimate.values)
    expected = whiten(returns.astype(np.float64) - values)
    if not np.allclose(np.concatenate(estimate.advantages), expected, atol=1e-2):
        raise _violation("advantages_aligned", "advantages are not the whitened returns minus values")
    last: dict[str, list[float]] = defaultdict(list)
    for sample, row in zip(samples, estimate.returns, strict=True):
        last[sample.episode_id] += row.tolist()
    for sample in samples:
        if last[sample.episode_id] and not np.isclose(last[sample.episode_id], sample.reward, atol=1e-3).any():
            raise _violation("returns_end", f"episode {sample.episode_id}: no return is the episode's reward")


def check_loss(loss: Tensor, logprobs_W: Tensor, advantages_W: Tensor, weights_W: Tensor, result: ClippedLoss) -> None:
    """Check the gradient of a micro-batch's policy loss by the token log-probs: a token with a positive advantage
    becomes more likely, one with a negative advantage less likely, and no token is left out unless it is clipped."""
    (gradient_W,) = torch.autograd.grad(loss, logprobs_W, retain_graph=True, allow_unused=True)
    if gradient_W is None:
        raise _violation("loss_gradient", "the loss does not depend on the log-probs")
    size_W = result.importance_weights * (advantages_W * weights_W).abs()
    active_W = (size_W > _SMALLEST) & ~result.clipped
    if (gradient_W * advantages_W > 0).any():
        raise _violation("loss_sign", "the loss lowers the probability of a token with a positive advantage")
    if (gradient_W[active_W] == 0).any():
        raise _violation("loss_gradient", "the loss has no gradient for a token with an advantage")


def check_weights(
    totals: Mapping[str, float],
    samples: Sequence[TrainingSample],
    num_episodes: int,
    num_tokens: int,
    norm: LossNorm = "episode",
    divisor: float = 1.0,
) -> None:
    """Check the summed token weights of every trained episode: its weight, multiplied by 1 / episodes ("episode"), its
    tokens / all tokens ("token"), its tokens / (divisor * episodes) ("constant") or its tokens / episodes ("sum").

    `totals`: summed token weights by episode, as used in the micro-batches of one minibatch, whose episodes and tokens
    are `num_episodes` and `num_tokens`. `samples`: the sequences that were used.
    """
    tokens: Counter[str] = Counter()
    for sample in samples:
        tokens[sample.episode_id] += sum(sample.sequence.loss_mask)
    weights = {sample.episode_id: sample.weight for sample in samples}
    for episode, count in tokens.items():
        if not count:
            continue
        factor = {
            "episode": 1 / num_episodes,
            "token": count / num_tokens,
            "constant": count / (divisor * num_episodes),
            "sum": count / num_episodes,
        }[norm]
        expected = weights[episode] * factor
        if abs(totals.get(episode, 0.0) - expected) > 1e-3 * abs(expected):
            raise _violation(
                "loss_weights", f"episode {episode} has weight {totals.get(episode, 0.0):.4g} instead of {expected:.4g}"
            )


def _violation(invariant: str, detail: str) -> HealthError:
    return HealthError(f"invariant {invariant}: {detail}; fix your algorithm, or report it")
