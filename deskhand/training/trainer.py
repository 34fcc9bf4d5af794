"""The policy-gradient trainer. Invariant: a step's gradient is the mean over episodes of the mean over their sampled tokens.

It does not depend on how episodes are cut into rows, nor rows into micro-batches. A row that contradicts itself takes its
whole episode out of the step and is counted by cause. `step` blocks; call it in a thread. All randomness (the order of
minibatches) comes from the seed and the step's number, so a resumed run goes on bit for bit.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from deskhand.algorithms.grpo import ClippedLoss, clipped_loss, kl_estimate, token_coefficients
from deskhand.engines.base import PreparedImage
from deskhand.errors import RecordError
from deskhand.training.batch import Batch, TrainingSample
from deskhand.training.config import TrainerConfig
from deskhand.training.optimizer import make_optimizer, torch_threads, update, warmup
from deskhand.training.policy import Policy, Scores


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step. Means over tokens are plain means over the trained tokens of the step, whatever their episode's weight."""

    step: int
    loss: float
    """Objective, mean over the step's updates."""
    gradient_norm: float
    """Largest norm before clipping."""
    clip_fraction: float
    ratio_mean: float
    ratio_max: float
    behaviour_weight_mean: float
    dropped_fraction: float
    """Share of tokens whose behaviour weight exceeded the cap."""
    kl: float
    """Estimate of KL(behaviour || weights when the token was first scored in this step), nats per token."""
    logprob_gap_max: float
    """Largest |log-prob - behaviour log-prob| of a token in the first update."""
    entropy: float
    """Nats, mean over the tokens of the first pass."""
    tokens: int
    """Sampled tokens trained in one pass."""
    rows: int
    images: int
    """Unique screenshots of the rows that were trained."""
    episodes: int
    """Episodes in the mean, those with zero advantage included."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Episodes refused, by cause."""
    updates: int = 0
    """Optimizer updates made; an update whose gradient is zero or not finite is not made."""
    learning_rate: float = 0.0
    seconds: float = 0.0


class Trainer:
    """AdamW on a policy. `steps` and `updates` count calls of `step` and optimizer updates since version 0."""

    def __init__(self, policy: Policy, config: TrainerConfig | None = None) -> None:
        self.policy = policy
        self.config = config = config or TrainerConfig()
        betas = (config.beta1, config.beta2)
        self.optimizer = make_optimizer(policy.parameters(), config.learning_rate, betas, config.weight_decay)
        self.steps = 0
        self.updates = 0

    def step(self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]) -> StepMetrics:
        """Train on the rows of some episodes, all rows of an episode together. `images` by sha256."""
        with torch_threads(self.config.threads):
            return self._step(samples, images)

    def _step(self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]) -> StepMetrics:
        started, config = time.perf_counter(), self.config
        samples, rejected = self._accepted(samples, images)
        tally = _Tally()
        proximal: list[np.ndarray] | None = None
        if config.proximal == "start" and config.passes * config.minibatches > 1:
            proximal = self.policy.logprobs([sample.sequence for sample in samples], images)
        order = np.random.default_rng([config.seed, self.steps])
        norms, rate = [0.0], 0.0
        updates_before = self.updates
        for number in range(config.passes):
            for part in _minibatches(samples, config.minibatches, order):
                self._accumulate(samples, part, images, proximal, tally, first=number == 0)
                rate = config.learning_rate * warmup(self.updates, config.warmup_steps)
                norm, updated = update(self.policy, self.optimizer, rate, config.max_gradient_norm)
                norms.append(norm)
                self.updates += updated
        self.steps += 1
        trained = [sample for sample in samples if sample.advantage != 0.0]
        return StepMetrics(
            step=self.steps,
            loss=tally.loss / (config.passes * config.minibatches),
            gradient_norm=float(np.max(norms)),
            **tally.means(),
            tokens=tally.tokens,
            rows=len(trained),
            images=len({span.sha256 for sample in trained for span in sample.sequence.spans}),
            episodes=len({sample.episode_id for sample in samples}),
            rejected=rejected,
            updates=self.updates - updates_before,
            learning_rate=rate,
            seconds=time.perf_counter() - started,
        )

    def _accepted(
        self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]
    ) -> tuple[list[TrainingSample], dict[str, int]]:
        """Samples of the episodes that hold only sound rows, and the causes of the others."""
        causes: dict[str, str] = {}
        worth: dict[str, tuple[float, float]] = {}
        for sample in samples:
            if worth.setdefault(sample.episode_id, (sample.advantage, sample.weight)) != (sample.advantage, sample.weight):
                raise ValueError(f"rows of episode {sample.episode_id} have different advantages or weights")
            if not np.isfinite(sample.advantage * sample.weight):
                raise ValueError(f"episode {sample.episode_id} has advantage {sample.advantage} and weight {sample.weight}")
            try:
                self.policy.check(sample.sequence, images)
            except RecordError as error:
                causes[sample.episode_id] = error.cause
        return [sample for sample in samples if sample.episode_id not in causes], dict(Counter(causes.values()))

    def _accumulate(
        self,
        samples: Sequence[TrainingSample],
        part: Sequence[int],
        images: Mapping[str, PreparedImage],
        proximal: list[np.ndarray] | None,
        tally: _Tally,
        *,
        first: bool,
    ) -> None:
        """Add the gradient of one minibatch. Rows whose advantage is zero weigh in the mean and cost nothing."""
        config = self.config
        coefficients = token_coefficients(
            [samples[index].episode_id for index in part],
            [sum(samples[index].sequence.sampled) for index in part],
            [samples[index].weight for index in part],
        )
        active = [position for position, index in enumerate(part) if samples[index].advantage != 0.0]
        chosen = [part[position] for position in active]

        def loss(batch: Batch, scores: Scores) -> Tensor:
            logprobs_W = scores.logprobs_W
            rows = [chosen[index] for index in batch.rows]
            advantages_W = _per_token([samples[index].advantage for index in rows], batch.rows_W)
            coefficients_W = _per_token([coefficients[active[index]] for index in batch.rows], batch.rows_W)
            if config.proximal == "behaviour":
                proximal_W = None
            elif proximal is None:
                proximal_W = logprobs_W.detach()
            else:
                proximal_W = torch.from_numpy(np.concatenate([proximal[index] for index in rows])).to(logprobs_W.device)
            result = clipped_loss(
                logprobs_W,
                batch.behaviour_logprobs_W,
                advantages_W,
                torch.ones_like(logprobs_W, dtype=torch.bool),
                config.clip_low,
                config.clip_high,
                proximal_W,
                config.behaviour_cap,
            )
            value = (result.values * coefficients_W).sum()
            tally.add(batch, scores, result, value, first=first)
            return value

        work = self.policy.plan([samples[index].sequence for index in chosen], images)
        self.policy.accumulate(work, loss)


class _Tally:
    """Sums over the tokens of a step."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.tokens = 0
        self.ratio_max = self.gap_max = 0.0

    def add(self, batch: Batch, scores: Scores, result: ClippedLoss, value: Tensor, *, first: bool) -> None:
        new_W, old_W = scores.logprobs_W.detach(), batch.behaviour_logprobs_W
        self.loss += value.item()
        self.sums["scored"] += len(new_W)
        self.sums["clipped"] += result.clipped.sum().item()
        self.sums["ratio"] += result.ratios.detach().sum().item()
        self.sums["weight"] += result.behaviour_weights.sum().item()
        self.sums["dropped"] += (result.behaviour_weights == 0).sum().item()
        self.ratio_max = max(self.ratio_max, result.ratios.max().item())
        if first:
            self.tokens += len(new_W)
            self.sums["kl"] += kl_estimate(new_W, old_W).sum().item()
            self.sums["entropy"] += scores.entropies_W.sum().item()
            self.gap_max = max(self.gap_max, (new_W - old_W).abs().max().item())

    def means(self) -> dict[str, float]:
        scored, tokens = max(1, self.sums["scored"]), max(1, self.tokens)
        return {
            "clip_fraction": self.sums["clipped"] / scored,
            "ratio_mean": self.sums["ratio"] / scored,
            "ratio_max": self.ratio_max,
            "behaviour_weight_mean": self.sums["weight"] / scored,
            "dropped_fraction": self.sums["dropped"] / scored,
            "kl": self.sums["kl"] / tokens,
            "logprob_gap_max": self.gap_max,
            "entropy": self.sums["entropy"] / tokens,
        }


def _per_token(values_B: Sequence[float], rows_W: Tensor) -> Tensor:
    """The value of each token's row, float32[W]."""
    return torch.tensor(values_B, dtype=torch.float32, device=rows_W.device).index_select(0, rows_W)


def _minibatches(samples: Sequence[TrainingSample], count: int, order: np.random.Generator) -> list[list[int]]:
    """Indices of the samples in `count` parts, whole episodes, of about equally many episodes, in random order."""
    episodes = sorted({sample.episode_id for sample in samples})
    order.shuffle(episodes)
    part_of = {episode: position * count // len(episodes) for position, episode in enumerate(episodes)}
    parts: list[list[int]] = [[] for _ in range(count)]
    for index, sample in enumerate(samples):
        parts[part_of[sample.episode_id]].append(index)
    return parts
