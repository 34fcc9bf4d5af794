"""Supervised training. Invariant: only target tokens are learned, and each weighs the same within a batch.

`fit` is the loop for every learner: the policy in the box is built with it (`models.tiny.warm_start`), and any checkpoint is warmed
up with it (`PolicyLearner`), on the batches, forward pass and image features of reinforcement learning, so that what is learned
here is what will be sampled there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from deskhand.recorder.graph import Sequence
from deskhand.trainer.batch import TrainBatch
from deskhand.trainer.optimizer import optimizer_step
from deskhand.trainer.policy import Policy, TokenScores
from deskhand.types import ImageSpan, PreparedImage

B = TypeVar("B", contravariant=True)
T = TypeVar("T")
SftCallback = Callable[[int, float, float], None]
"""Told (updates made, mean loss of those since it was last told, seconds)."""


class SupervisedLearner(Protocol[B]):
    """A model with its optimizers."""

    def gradient(self, batch: B) -> float:
        """Add the gradient of a batch's loss; returns the loss."""
        ...

    def update(self, factor: float) -> None:
        """One update at `factor` times the learner's own learning rates; the gradient is clear afterwards."""
        ...


@dataclass(frozen=True)
class Schedule:
    """How long, and the factor on the learning rates: up over `warmup` updates, level, down to 0 over the last share `decay`."""

    steps: int = 10**9
    seconds: float = math.inf
    warmup: int = 50
    decay: float = 0.4

    def progress(self, step: int, elapsed_s: float) -> float:
        """Share of the training that is over before update `step` (from 0)."""
        return max(step / self.steps, elapsed_s / self.seconds)

    def factor(self, step: int, progress: float) -> float:
        """On the learning rates of update `step`."""
        rising = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return rising * (min(1.0, (1.0 - progress) / self.decay) if self.decay else 1.0)


def run_sft(
    learner: SupervisedLearner[T],
    batches: Iterator[T],
    schedule: Schedule,
    *,
    start: int = 0,
    clock: Callable[[], float] = time.monotonic,
    report: SftCallback | None = None,
    every: int = 50,
    keep: Callable[[int], None] | None = None,
) -> None:
    """Update on one batch after the other until the schedule or the batches end, from update `start` on.

    `clock` must read alike in all processes of a team. `report` is told every `every` updates; `keep(updates made)` is called after
    each, with the learner free to use.
    """
    began, losses = clock(), list[float]()
    for step in range(start, schedule.steps):
        elapsed_s = clock() - began
        progress = schedule.progress(step, elapsed_s)
        batch = next(batches, None) if progress < 1.0 else None
        if batch is None:
            return
        losses.append(learner.gradient(batch))
        learner.update(schedule.factor(step, progress))
        if (step + 1) % every == 0:
            if report is not None:
                report(step + 1, sum(losses) / len(losses), elapsed_s)
            losses.clear()
        if keep is not None:
            keep(step + 1)


@dataclass(frozen=True, slots=True)
class SupervisedRow:
    """Ids with expanded placeholders, the spans of the images, and which tokens to learn. `weight`: factor on its tokens."""

    token_ids: tuple[int, ...]
    target: tuple[bool, ...]
    spans: tuple[ImageSpan, ...] = ()
    weight: float = 1.0

    @classmethod
    def of(cls, sequence: Sequence) -> SupervisedRow:
        """What was sampled in a recorded sequence is what is learned of it."""
        return cls(sequence.token_ids, sequence.sampled, sequence.spans)

    def sequence(self) -> Sequence:
        """The row as if its targets had been sampled at temperature 1."""
        length = len(self.token_ids)
        return Sequence(self.token_ids, self.target, (0.0,) * length, (-1,) * length, self.spans, ())


SupervisedBatch = tuple[Rows[SupervisedRow], Mapping[str, PreparedImage]]
"""The rows of one update and their images by sha256."""


@dataclass
class PolicySftLearner:
    """A policy and the optimizer of its parameters. `norm` is that of the last gradient before clipping."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    learning_rate: float
    max_gradient_norm: float = 1.0
    norm: float = 0.0

    def gradient(self, batch: SupervisedBatch) -> float:
        """Raises `RecordError` for a row whose placeholders and images disagree."""
        return gradient(self.policy, *batch)

    def update(self, factor: float) -> None:
        self.norm, _ = optimizer_step(self.policy, self.optimizer, self.learning_rate * factor, self.max_gradient_norm)


def gradient(policy: Policy, rows: Rows[SupervisedRow], images: Mapping[str, PreparedImage]) -> float:
    """Add the gradient of the token-weighted cross-entropy to `.grad`; returns the loss, nats a target token."""
    work = policy.plan([row.sequence() for row in rows], images)
    mass = sum(row.weight * sum(row.target) for row in rows)
    if mass <= 0:
        return 0.0
    total = 0.0

    def loss(batch: TrainBatch, scores: TokenScores) -> Tensor:
        nonlocal total
        weights_B = torch.tensor([rows[index].weight / mass for index in batch.rows], device=scores.logprobs_W.device)
        value = -(scores.logprobs_W * weights_B.index_select(0, batch.rows_W)).sum()
        total += value.item()
        return value

    policy.accumulate(work, loss)
    return total


def cross_entropy(policy: Policy, rows: Rows[SupervisedRow], images: Mapping[str, PreparedImage]) -> float:
    """Mean nats per target token under the weights of now."""
    logprobs = policy.logprobs([row.sequence() for row in rows], images)
    return -float(sum(values.sum() for values in logprobs)) / max(1, sum(len(values) for values in logprobs))
