"""Supervised training on rows. Invariant: only target tokens are learned, and each weighs the same within a step.

Used for warm starts: rows are demonstrations, with the tokens to imitate marked as targets. It runs on the same batches,
forward pass and image features as reinforcement learning, so what is learned here is what will be sampled there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from deskhand.engines.base import ImageSpan, PreparedImage
from deskhand.recorder.graph import Sequence
from deskhand.training.batch import Batch
from deskhand.training.config import SupervisedConfig
from deskhand.training.optimizer import make_optimizer, torch_threads, update, warmup
from deskhand.training.policy import Policy, Scores


@dataclass(frozen=True, slots=True)
class SupervisedRow:
    """Ids with expanded placeholders, the spans of the images, and which tokens to learn. `weight`: factor on its tokens."""

    token_ids: tuple[int, ...]
    target: tuple[bool, ...]
    spans: tuple[ImageSpan, ...] = ()
    weight: float = 1.0

    def sequence(self) -> Sequence:
        """The row as if its targets had been sampled at temperature 1."""
        length = len(self.token_ids)
        return Sequence(self.token_ids, self.target, (0.0,) * length, (-1,) * length, self.spans, ())


SupervisedBatch = tuple[Rows[SupervisedRow], Mapping[str, PreparedImage]]
"""The rows of one optimizer update and their images by sha256."""


@dataclass(frozen=True, slots=True)
class SupervisedMetrics:
    """One update. `loss`: nats per target token, weighted; `accuracy`: share of target tokens with probability > 1/2."""

    step: int
    loss: float
    accuracy: float
    gradient_norm: float
    learning_rate: float
    target_tokens: int
    rows: int
    seconds: float


def cosine(step: int, config: SupervisedConfig) -> float:
    """Learning rate of update `step` (from 0): linear warm-up, then a half cosine down to the final rate at `config.steps`."""
    progress = max(0.0, step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    shape = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    rate = config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * shape
    return rate * warmup(step, config.warmup_steps)


def train(
    policy: Policy,
    batches: Iterable[SupervisedBatch],
    config: SupervisedConfig,
    on_step: Callable[[SupervisedMetrics], None] | None = None,
    evaluate: Callable[[int], None] | None = None,
) -> list[SupervisedMetrics]:
    """Train until `config.steps` or the end of `batches`; returns the metrics of every update.

    `evaluate(step)` is called every `config.evaluate_every` updates, with the model free to use. Raises `RecordError` for a
    row whose placeholders and images disagree.
    """
    betas = (config.beta1, config.beta2)
    optimizer = make_optimizer(policy.parameters(), config.learning_rate, betas, config.weight_decay)
    history: list[SupervisedMetrics] = []
    with torch_threads(config.threads):
        for step, (rows, images) in zip(range(config.steps), batches, strict=False):
            started = time.perf_counter()
            loss, accuracy, tokens = gradient(policy, rows, images)
            rate = cosine(step, config)
            norm, _ = update(policy, optimizer, rate, config.max_gradient_norm)
            history.append(
                SupervisedMetrics(step + 1, loss, accuracy, norm, rate, tokens, len(rows), time.perf_counter() - started)
            )
            if on_step:
                on_step(history[-1])
            if evaluate and config.evaluate_every and (step + 1) % config.evaluate_every == 0:
                evaluate(step + 1)
    return history


def gradient(policy: Policy, rows: Rows[SupervisedRow], images: Mapping[str, PreparedImage]) -> tuple[float, float, int]:
    """Add the gradient of the token-weighted cross-entropy to `.grad`; returns (loss, accuracy, target tokens)."""
    work = policy.plan([row.sequence() for row in rows], images)
    mass = sum(row.weight * sum(row.target) for row in rows)
    tokens = sum(sum(row.target) for row in rows)
    if mass <= 0:
        return 0.0, 0.0, tokens
    total = likely = 0.0

    def loss(batch: Batch, scores: Scores) -> Tensor:
        nonlocal total, likely
        weights_B = torch.tensor([rows[index].weight / mass for index in batch.rows], device=scores.logprobs_W.device)
        value = -(scores.logprobs_W * weights_B.index_select(0, batch.rows_W)).sum()
        total += value.item()
        likely += (scores.logprobs_W.detach() > math.log(0.5)).sum().item()
        return value

    policy.accumulate(work, loss)
    return total, likely / tokens, tokens


@torch.no_grad()
def cross_entropy(policy: Policy, rows: Rows[SupervisedRow], images: Mapping[str, PreparedImage]) -> float:
    """Mean nats per target token under the weights of now."""
    logprobs = policy.logprobs([row.sequence() for row in rows], images)
    return -float(sum(values.sum() for values in logprobs)) / max(1, sum(len(values) for values in logprobs))
