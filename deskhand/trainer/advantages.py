"""Advantages of sampled tokens.

Used by `trainer.trainer`. With a group baseline every token has the advantage of its episode, or with `gigpo` of its
reply. PPO computes generalized advantage estimates over the tokens of an episode in the order in which they were
sampled, whitened over the step. A teacher adds an advantage of its own to each token.

Invariant: the advantage of a token does not depend on how its episode is split into sequences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from deskhand.algorithms.distillation import distillation_advantages
from deskhand.algorithms.ppo import gae, whiten
from deskhand.config.trainer import CriticConfig, DistillationConfig
from deskhand.errors import HealthError
from deskhand.trainer.batch import MAX_LOGPROB, TrainingSample


@dataclass(frozen=True, slots=True)
class AdvantageEstimate:
    """Arrays by sequence, float32[sampled tokens]; `returns` and `values` are empty without a critic."""

    advantages: list[np.ndarray]
    returns: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    @property
    def explained_variance(self) -> float | None:
        """1 - variance(returns - values) / variance(returns) over tokens; None if undefined."""
        if not self.returns:
            return None
        returns, values = np.concatenate(self.returns), np.concatenate(self.values)
        spread = float(returns.var()) if returns.size else 0.0
        return 1.0 - float((returns - values).var()) / spread if spread > 0 else None


def group_advantages_of(samples: Sequence[TrainingSample]) -> AdvantageEstimate:
    """Return for every token the advantage of its episode, or of its reply where the algorithm has those."""
    return AdvantageEstimate(
        [np.repeat(np.array(each.advantages_by_reply(), np.float32), each.reply_lengths()) for each in samples]
    )


def with_teacher(
    samples: Sequence[TrainingSample],
    estimate: AdvantageEstimate,
    teacher: Sequence[np.ndarray],
    config: DistillationConfig,
) -> tuple[AdvantageEstimate, float | None]:
    """Return the advantages of `algorithms.distillation`, and the mean divergence from the teacher in nats per token
    (None without tokens). `teacher`: its log-probs by sequence, float[sampled tokens].

    Raises `HealthError` if they are not log-probs of these tokens.
    """
    advantages, divergences = list[np.ndarray](), list[np.ndarray]()
    for sample, own, row in zip(samples, estimate.advantages, teacher, strict=True):
        logprobs = np.asarray(sample.sequence.logprobs)[np.asarray(sample.sequence.loss_mask)]
        if row.shape != logprobs.shape or not np.isfinite(row).all() or (row > MAX_LOGPROB).any():
            raise HealthError(
                f"invariant teacher_logprobs: the teacher returned {len(row)} log-probs for {len(logprobs)} sampled "
                "tokens, or one that is not finite or above 0; check trainer.distillation.teacher"
            )
        found = distillation_advantages(
            own,
            logprobs,
            row,
            rl_loss_weight=config.rl_loss_weight,
            distill_loss_weight=config.distill_loss_weight,
        )
        advantages.append(found.astype(np.float32))
        divergences.append(logprobs - row)
    total = np.concatenate(divergences) if divergences else np.empty(0)
    return replace(estimate, advantages=advantages), float(total.mean()) if total.size else None


def mean_reward(samples: Sequence[TrainingSample]) -> float:
    """Return the weighted mean reward of the episodes."""
    episodes = {sample.episode_id: (sample.reward, sample.weight) for sample in samples}
    rewards, weights = zip(*episodes.values(), strict=True)
    return float(np.average(rewards, weights=weights)) if sum(weights) > 0 else 0.0


def gae_advantages_of(
    samples: Sequence[TrainingSample], values: Sequence[np.ndarray], config: CriticConfig
) -> AdvantageEstimate:
    """Return generalized advantage estimates. `values`: predictions of the critic by sequence."""
    advantages = [np.zeros(len(row), dtype=np.float64) for row in values]
    returns = [np.zeros(len(row), dtype=np.float64) for row in values]
    episodes: defaultdict[str, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        episodes[sample.episode_id].append(index)
    for rows in episodes.values():
        order = _replies_in_order(samples, rows)
        if not order:
            continue
        value = np.concatenate([values[row][start:end] for row, start, end in order]).astype(np.float64)
        turns = np.repeat(np.arange(len(order)), [end - start for _, start, end in order])
        rewards = np.zeros(len(value))
        rewards[-1] = samples[rows[0]].reward
        found = gae(
            rewards,
            value,
            turns,
            token_discount=config.token_gamma,
            token_lambda=config.token_gae_lambda,
            turn_discount=config.turn_gamma,
            turn_lambda=config.turn_gae_lambda,
        )
        position = 0
        for row, start, end in order:
            following = position + end - start
            advantages[row][start:end] = found.advantages[position:following]
            returns[row][start:end] = found.returns[position:following]
            position = following
    lengths = np.cumsum([len(row) for row in advantages])[:-1]
    whitened = np.split(whiten(np.concatenate(advantages)), lengths) if advantages else []
    return AdvantageEstimate(*([row.astype(np.float32) for row in rows] for rows in (whitened, returns, values)))


def _replies_in_order(samples: Sequence[TrainingSample], rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the replies of an episode in sampling order: (sequence, start, end) among its sampled tokens."""
    found: list[tuple[int, int, int, int]] = []
    for row in rows:
        positions = [position for position, length in samples[row].turns if length]
        start = 0
        for number, length in enumerate(samples[row].reply_lengths()):
            position = positions[number] if positions else len(found)
            found.append((position, row, start, start + length))
            start += length
    return [(row, start, end) for _, row, start, end in sorted(found)]
