"""Supervised training.

`run_sft` is the loop for any learner: `recipes.tiny.pretrain` builds the bundled policy with it, `recipes.sft` fine-
tunes checkpoints with `PolicySftLearner`, which uses the micro-batches, forward pass and image features of the RL
trainer.

Invariant: only target tokens are trained, with equal weights within a batch.
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
"""Takes the number of updates, the mean loss since the last call, and seconds."""


class SupervisedLearner(Protocol[B]):
    """A model with its optimizers. `gradient` adds the gradient of a batch's loss and returns the loss; `update` uses
    `factor` times the learner's learning rates and clears the gradient."""

    def gradient(self, batch: B) -> float: ...

    def update(self, factor: float) -> None: ...


@dataclass(frozen=True)
class Schedule:
    """Length and learning-rate schedule: linear warmup over `warmup` updates, constant, linear decay over the last
    fraction."""

    steps: int = 10**9
    seconds: float = math.inf
    warmup: int = 50
    decay: float = 0.4

    def progress(self, step: int, elapsed_s: float) -> float:
        """Return the finished fraction of the training before update `step` (from 0)."""
        return max(step / self.steps, elapsed_s / self.seconds)

    def factor(self, step: int, progress: float) -> float:
        """Return the learning-rate factor of update `step`."""
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
    """Update on each batch until the schedule or the batches end, starting at update `start`.

    `clock` must be synchronous in all data-parallel processes. `report` is called every `every` updates, `keep` after
    each update with their number.
    """
    started, losses = clock(), list[float]()
    for step in range(start, schedule.steps):
        elapsed_s = clock() - started
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
    """Token ids with expanded placeholders, image spans and the tokens to train. `weight`: factor on its tokens."""

    token_ids: tuple[int, ...]
    target: tuple[bool, ...]
    spans: tuple[ImageSpan, ...] = ()
    weight: float = 1.0

    @classmethod
    def of(cls, sequence: Sequence) -> SupervisedRow:
        """Return the row whose targets are the sampled tokens of a sequence."""
        return cls(sequence.token_ids, sequence.loss_mask, sequence.spans)

    def sequence(self) -> Sequence:
        """Return the row, up to its last target, as a sequence whose targets were sampled at temperature 1."""
        length = max((at + 1 for at, is_target in enumerate(self.target) if is_target), default=len(self.token_ids))
        target, spans = self.target[:length], tuple(span for span in self.spans if span.start < length)
        versions = tuple(0 if is_target else -1 for is_target in target)
        return Sequence(self.token_ids[:length], target, (0.0,) * length, versions, spans, ())


SupervisedBatch = tuple[Rows[SupervisedRow], Mapping[str, PreparedImage]]
"""Rows of one update and their images by sha256."""


@dataclass
class PolicySftLearner:
    """Learner of a policy. `norm`: norm of the last gradient before clipping."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    learning_rate: float
    max_grad_norm: float = 1.0
    norm: float = 0.0

    def gradient(self, batch: SupervisedBatch) -> float:
        """Raise `RecordError` for a row whose placeholders and images disagree."""
        return gradient(self.policy, *batch)

    def update(self, factor: float) -> None:
        self.norm, _ = optimizer_step(self.policy, self.optimizer, self.learning_rate * factor, self.max_grad_norm)


def gradient(policy: Policy, rows: Rows[SupervisedRow], images: Mapping[str, PreparedImage]) -> float:
    """Add the gradient of the weighted cross-entropy to `.grad`; return the loss in nats per target token."""
    work = policy.plan([row.sequence() for row in rows], images)
    total_weight = sum(row.weight * sum(row.target) for row in rows)
    if total_weight <= 0:
        return 0.0
    total = 0.0

    def loss(batch: TrainBatch, scores: TokenScores) -> Tensor:
        nonlocal total
        weights_B = torch.tensor(
            [rows[index].weight / total_weight for index in batch.rows], device=scores.logprobs_W.device
        )
        value = -(scores.logprobs_W * weights_B.index_select(0, batch.rows_W)).sum()
        total += value.item()
        return value

    policy.accumulate(work, loss)
    return total


def cross_entropy(policy: Policy, rows: Rows[SupervisedRow], images: Mapping[str, PreparedImage]) -> float:
    """Return the mean nats per target token under the current weights."""
    logprobs = policy.logprobs([row.sequence() for row in rows], images)
    return -float(sum(values.sum() for values in logprobs)) / max(1, sum(len(values) for values in logprobs))
