"""The policy-gradient trainer. Invariant: a step's gradient is the mean over episodes of the mean over their sampled tokens.

(Dr.GRPO divides every episode by the same constant instead.) It does not depend on how episodes are cut into rows, nor rows into
micro-batches. A row that contradicts itself takes its whole episode out of the step and is counted by cause. `step` blocks; call
it in a thread. All randomness (the order of minibatches) comes from the seed and the step's number, so a resumed run goes on bit
for bit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deskhand.algorithms.kl import kl_estimate, reference_penalty
from deskhand.algorithms.loss_norm import token_weights
from deskhand.algorithms.objective import clipped_loss
from deskhand.algorithms.registry import get_algorithm
from deskhand.config.trainer import TrainerConfig
from deskhand.errors import RecordError
from deskhand.trainer.advantages import AdvantageEstimate, gae_advantages_of, group_advantages_of, mean_reward
from deskhand.trainer.batch import TrainBatch, TrainingSample
from deskhand.trainer.critic import Critic
from deskhand.trainer.optimizer import make_optimizer, optimizer_step, torch_threads, warmup_factor
from deskhand.trainer.policy import Policy, TokenScores
from deskhand.trainer.step_metrics import StepMetrics, StepMetricsAccumulator
from deskhand.types import PreparedImage


@dataclass(frozen=True, slots=True)
class _Work:
    """What a step knows of its rows before its first update; a list has an entry for each row."""

    samples: Sequence[TrainingSample]
    images: Mapping[str, PreparedImage]
    credit: AdvantageEstimate
    reply_lengths: list[list[int]]
    proximal: list[np.ndarray] | None
    """Log-probs under the weights at the start; None where those of the moment will do."""
    reference: list[np.ndarray] | None


class Trainer:
    """AdamW on a policy. `steps` and `updates` count calls of `step` and optimizer updates since version 0. `versions_ahead`: by
    how much versions of the weights are ahead of the steps (`rollout.lineage`)."""

    def __init__(self, policy: Policy, config: TrainerConfig | None = None) -> None:
        self.policy = policy
        self.config = config = config or TrainerConfig()
        self.algorithm = get_algorithm(config.algorithm)
        betas = (config.beta1, config.beta2)
        self.optimizer = make_optimizer(
            policy.parameters(), config.learning_rate, betas, config.weight_decay, config.optimizer
        )
        self.critic = Critic(policy, config) if self.algorithm.uses_critic else None
        if config.kl_loss_coef:
            policy.freeze_reference()
        self.steps = 0
        self.updates = 0
        self.versions_ahead = 0

    @property
    def version(self) -> int:
        """Of the weights of now: recorded tokens of this version were sampled by an engine that had these very weights."""
        return self.steps + self.versions_ahead

    def parts(self) -> Iterator[tuple[str, Mapping[str, Tensor], torch.optim.Optimizer]]:
        """Everything that is trained, for checkpoints: a prefix of names, parameters by name, their optimizer."""
        yield "", self.policy.parameters(), self.optimizer
        if self.critic is not None:
            for name, parameters, optimizer in self.critic.parts():
                yield f"critic.{name}.", parameters, optimizer

    def sync_master_weights(self) -> None:
        """Bring every model that is trained up to its masters, after these were replaced; call it with the policy's lock."""
        self.policy.write_back()
        if self.critic is not None and self.critic.own is not None:
            self.critic.own.write_back()

    def step(self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]) -> StepMetrics:
        """Train on the rows of some episodes, all rows of an episode together. `images` by sha256."""
        with torch_threads(self.config.torch_threads):
            return self._step(samples, images)

    def _step(self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]) -> StepMetrics:
        started = time.perf_counter()
        samples, rejected = self._accepted(samples, images)
        if not self._scores_first:
            return self._take(samples, rejected, images, started)
        with self.policy.cached_vision(
            {span.sha256: images[span.sha256] for each in samples for span in each.sequence.spans}
        ):
            return self._take(samples, rejected, images, started)

    def _take(
        self,
        samples: Sequence[TrainingSample],
        rejected: dict[str, int],
        images: Mapping[str, PreparedImage],
        started: float,
    ) -> StepMetrics:
        config = self.config
        work, tally = self._prepare(samples, images), StepMetricsAccumulator(self.version)
        order = np.random.default_rng([config.seed, self.steps])
        norms, rate = [0.0], 0.0
        updates_before = self.updates
        for number in range(config.ppo_epochs):
            for part in _minibatches(samples, config.num_minibatches, order):
                self._accumulate(work, part, tally, first=number == 0, updated=self.updates > updates_before)
                warmth = warmup_factor(self.updates, config.warmup_steps)
                rate = config.learning_rate * warmth
                norm, updated = optimizer_step(self.policy, self.optimizer, rate, config.max_grad_norm)
                if self.critic is not None:
                    self.critic.update(warmth, config.max_grad_norm)
                norms.append(norm)
                self.updates += updated
        self.steps += 1
        trained = [samples[index] for index in self._active(work, range(len(samples)))]
        rounds = config.ppo_epochs * config.num_minibatches
        return StepMetrics(
            step=self.steps,
            loss=tally.loss / rounds,
            grad_norm=float(np.max(norms)),
            **tally.means(),
            mismatch_kl=tally.mismatch_kl("text", "images"),
            mismatch_kl_text=tally.mismatch_kl("text"),
            mismatch_kl_images=tally.mismatch_kl("images"),
            tokens=tally.tokens,
            rows=len(trained),
            images=len({span.sha256 for sample in trained for span in sample.sequence.spans}),
            episodes=len({sample.episode_id for sample in samples}),
            reference_kl=tally.reference_kl,
            value_loss=tally.value_loss / rounds if self.critic else None,
            explained_variance=work.credit.explained_variance,
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
        worth: dict[str, tuple[float, float, float]] = {}
        for sample in samples:
            found = (sample.advantage, sample.weight, sample.reward)
            if worth.setdefault(sample.episode_id, found) != found:
                raise ValueError(f"rows of episode {sample.episode_id} have different advantages, weights or rewards")
            if not np.isfinite(sample.advantage * sample.weight * sample.reward):
                raise ValueError(f"episode {sample.episode_id} has advantage, weight and reward {found}")
            try:
                self.policy.check(sample.sequence, images)
                sample.reply_lengths()
            except RecordError as error:
                causes[sample.episode_id] = error.cause
        return [sample for sample in samples if sample.episode_id not in causes], dict(Counter(causes.values()))

    @property
    def _scores_first(self) -> bool:
        """Whether the policy scores the rows before the first update, so that their pictures are needed more than once."""
        config = self.config
        several = config.ppo_epochs * config.num_minibatches > 1
        proximal, reference = config.decoupled_loss and several, config.kl_loss_coef and self.policy.config.lora
        return bool(proximal or reference or (self.critic is not None and self.critic.own is None))

    def _prepare(self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]) -> _Work:
        """Score the rows under the weights before the first update, as far as the algorithm needs it."""
        config, rows = self.config, [sample.sequence for sample in samples]
        several = config.ppo_epochs * config.num_minibatches > 1
        proximal = self.policy.logprobs(rows, images) if config.decoupled_loss and several else None
        reference = self.policy.reference_logprobs(rows, images) if config.kl_loss_coef else None
        if self.critic is None:
            credit = group_advantages_of(samples)
        else:
            if self.steps == 0 and samples:
                self.critic.begin(mean_reward(samples))
            credit = gae_advantages_of(samples, self.critic.values(rows, images), config.critic)
        return _Work(samples, images, credit, [sample.reply_lengths() for sample in samples], proximal, reference)

    def _active(self, work: _Work, part: Sequence[int]) -> list[int]:
        """Rows that cost anything. Those whose advantage is zero weigh in the mean, and there is nothing to compute for them."""
        if self.critic is not None or self.config.kl_loss_coef:
            return list(part)
        return [index for index in part if work.samples[index].advantage != 0.0]

    def _accumulate(
        self, work: _Work, part: Sequence[int], tally: StepMetricsAccumulator, *, first: bool, updated: bool
    ) -> None:
        """Add the gradient of one minibatch to the policy's, and to the critic's."""
        config, algorithm, samples = self.config, self.algorithm, work.samples
        divisor = config.loss_divisor if algorithm.loss_norm == "constant" else None
        counts = [sum(work.reply_lengths[index]) for index in part]
        episodes, weights = [samples[index].episode_id for index in part], [samples[index].weight for index in part]
        coefficients = dict(zip(part, token_weights(episodes, counts, weights, divisor), strict=True))
        means = dict(zip(part, token_weights(episodes, counts, weights), strict=True)) if divisor else coefficients
        chosen = self._active(work, part)

        def targets(batch: TrainBatch) -> tuple[Tensor, Tensor, Tensor]:
            rows = [chosen[index] for index in batch.rows]
            weights_W = _per_row([means[index] for index in rows], batch.rows_W)
            return (
                _joined(work.credit.returns, rows, weights_W),
                _joined(work.credit.values, rows, weights_W),
                weights_W,
            )

        def loss(batch: TrainBatch, scores: TokenScores) -> Tensor:
            rows, logprobs_W = [chosen[index] for index in batch.rows], scores.logprobs_W
            coefficients_W = _per_row([coefficients[index] for index in rows], batch.rows_W)
            if not config.decoupled_loss:
                proximal_W = None
            elif work.proximal is None:
                proximal_W = logprobs_W.detach()
            else:
                proximal_W = _joined(work.proximal, rows, logprobs_W)
            result = clipped_loss(
                logprobs_W,
                batch.behaviour_logprobs_W,
                _joined(work.credit.advantages, rows, logprobs_W),
                torch.ones_like(logprobs_W, dtype=torch.bool),
                algorithm.clip_ratio_low if config.clip_ratio_low is None else config.clip_ratio_low,
                algorithm.clip_ratio_high if config.clip_ratio_high is None else config.clip_ratio_high,
                proximal_W,
                config.importance_weight_cap,
                config.importance_weight_mode,
                config.dual_clip,
                _owners([length for index in rows for length in work.reply_lengths[index]], logprobs_W)
                if algorithm.ratio_level == "reply"
                else None,
            )
            value = (result.values * coefficients_W).sum()
            if work.reference is not None:
                reference_W = _joined(work.reference, rows, logprobs_W)
                penalty_W = reference_penalty(logprobs_W, reference_W, config.kl_estimator)
                value = value + config.kl_loss_coef * (penalty_W * coefficients_W).sum()
                tally.add_reference(kl_estimate(reference_W, logprobs_W))
            tally.add(batch, scores, result, value, first=first, updated=updated)
            if self.critic is not None and self.critic.own is None:
                extra = self.critic.loss(scores.hidden_WH, targets(batch))
                tally.value_loss += extra.item()
                value = value + extra
            return value

        sequences = [samples[index].sequence for index in chosen]
        self.policy.accumulate(self.policy.plan(sequences, work.images), loss)
        if self.critic is not None and self.critic.own is not None:
            tally.value_loss += self.critic.accumulate(sequences, work.images, targets)


def _per_row(values_B: Sequence[float], rows_W: Tensor) -> Tensor:
    """The value of each token's row, float32[W]."""
    return torch.tensor(values_B, dtype=torch.float32, device=rows_W.device).index_select(0, rows_W)


def _joined(values: Sequence[np.ndarray], rows: Sequence[int], like_W: Tensor) -> Tensor:
    """The values of the tokens of some rows, one row after the other, where `like_W` is."""
    return torch.from_numpy(np.concatenate([values[index] for index in rows])).to(like_W.device)


def _owners(lengths: Sequence[int], like_W: Tensor) -> Tensor:
    """For each token the number of its reply in the micro-batch, int64[W]."""
    return torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(like_W.device)


def _minibatches(samples: Sequence[TrainingSample], count: int, order: np.random.Generator) -> list[list[int]]:
    """Indices of the samples in `count` parts, whole episodes, of about equally many episodes, in random order."""
    episodes = sorted({sample.episode_id for sample in samples})
    order.shuffle(episodes)
    part_of = {episode: position * count // len(episodes) for position, episode in enumerate(episodes)}
    parts: list[list[int]] = [[] for _ in range(count)]
    for index, sample in enumerate(samples):
        parts[part_of[sample.episode_id]].append(index)
    return parts
