"""Policy-gradient trainer.

Used by `recipes.training_loop`; call the blocking `Trainer.step` in a thread. An inconsistent sequence removes its
episode from the step and is counted by cause; an inconsistent step stops the run (`trainer.step_checks`). The order of
minibatches depends only on the seed, the step and the order of the samples, so resumed runs are bit-exact.

Invariant: the gradient of an update is the sum of its tokens' losses, divided as `loss_norm` says, however episodes are
split into sequences and micro-batches.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from deskhand.algorithms.objective import clipped_loss, kl_estimate, token_weights
from deskhand.config.trainer import TrainerConfig
from deskhand.errors import ConfigError
from deskhand.recorder import graph
from deskhand.trainer.advantages import (
    AdvantageEstimate,
    gae_advantages_of,
    group_advantages_of,
    mean_reward,
    with_teacher,
)
from deskhand.trainer.batch import TrainBatch, TrainingSample
from deskhand.trainer.critic import Critic
from deskhand.trainer.objective_settings import ObjectiveSettings, lr_factor
from deskhand.trainer.optimizer import optimizer_step, policy_optimizer, torch_threads, warmup_factor
from deskhand.trainer.phase_timer import PhaseTimer
from deskhand.trainer.policy import Policy, TokenScores
from deskhand.trainer.step_checks import check_episodes, check_estimate, check_groups, check_loss, check_weights
from deskhand.trainer.step_metrics import StepMetrics, StepMetricsAccumulator, device_peak_mib
from deskhand.types import PreparedImage

Teacher = Callable[[Sequence[graph.Sequence], Mapping[str, PreparedImage]], list[np.ndarray]]
"""Returns a teacher's log-probs of the sampled tokens of each sequence, float[tokens], like `Policy.logprobs`. Called
in the trainer's thread."""


@dataclass(frozen=True, slots=True)
class _StepInputs:
    """Inputs of a step, computed before its first update. Lists have one entry per sequence."""

    samples: Sequence[TrainingSample]
    images: Mapping[str, PreparedImage]
    estimate: AdvantageEstimate
    reply_lengths: list[list[int]]
    proximal: list[np.ndarray] | None
    """Log-probs under the initial weights of the step; None if the current ones are equal."""
    reference: list[np.ndarray] | None
    teacher_kl: float | None


class Trainer:
    """Trainer of a policy, and of a critic if the algorithm uses one.

    `total_steps` is the length of the learning-rate schedule, `teacher` that of `trainer.distillation`. `steps` and
    `updates` count training steps and optimizer updates since version 0. `versions_ahead` is the difference between
    weight versions and steps (`rollout.weight_versions`).
    """

    def __init__(
        self,
        policy: Policy,
        config: TrainerConfig | None = None,
        total_steps: int | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        self.policy, self.teacher = policy, teacher
        self.config = config = config or TrainerConfig()
        self.objective = ObjectiveSettings.of(config)
        self.algorithm = self.objective.algorithm
        if total_steps is None and config.lr_scheduler_type != "constant":
            raise ConfigError("trainer.lr_scheduler_type: a schedule needs the number of steps; pass total_steps")
        if (config.distillation is None) != (teacher is None):
            raise ConfigError("trainer.distillation: needs its teacher; pass teacher=load_teacher(...)")
        self.total_steps = total_steps or 1
        self.optimizer = policy_optimizer(policy, config, config.learning_rate)
        self.critic = Critic(policy, config) if self.algorithm.uses_critic else None
        if config.kl_loss_coef:
            policy.freeze_reference()
        self.steps = 0
        self.updates = 0
        self.versions_ahead = 0

    @property
    def version(self) -> int:
        return self.steps + self.versions_ahead

    def parts(self) -> Iterator[tuple[str, Mapping[str, Tensor], torch.optim.Optimizer]]:
        """Yield (name prefix, parameters, optimizer) of everything that is trained, for checkpoints."""
        yield "", self.policy.parameters(), self.optimizer
        if self.critic is not None:
            for name, parameters, optimizer in self.critic.parts():
                yield f"critic.{name}.", parameters, optimizer

    def sync_master_weights(self) -> None:
        """Copy replaced master weights into the models. Call with the policy's lock held."""
        self.policy.write_back()
        if self.critic is not None and self.critic.own is not None:
            self.critic.own.write_back()

    def step(self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]) -> StepMetrics:
        """Train on the sequences of complete episodes. `images` are keyed by sha256."""
        started, phases = time.perf_counter(), PhaseTimer()
        with phases.measure("check"):
            samples, rejected = self._valid_samples(samples, images)
        encoded_once = (
            self.policy.cached_vision(
                {span.sha256: images[span.sha256] for one in samples for span in one.sequence.spans}
            )
            if self._scores_first
            else nullcontext()
        )
        with torch_threads(self.config.torch_threads), encoded_once:
            metrics = self._train(samples, images, phases)
        seconds, peak_mib = time.perf_counter() - started, device_peak_mib(self.policy.model)
        return replace(
            metrics, rejected=rejected, seconds=seconds, phases=dict(phases.seconds), device_peak_mib=peak_mib
        )

    def _train(
        self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage], phases: PhaseTimer
    ) -> StepMetrics:
        config, num_minibatches = self.config, self.objective.num_minibatches
        tally = StepMetricsAccumulator(self.version)
        with phases.measure("score"):
            work = self._prepare(samples, images)
        schedule = lr_factor(config.lr_scheduler_type, self.steps / self.total_steps, config.min_lr_ratio)
        order = np.random.default_rng([config.seed, self.steps])
        norms, rate = [0.0], 0.0
        updates_before = self.updates
        for number in range(config.ppo_epochs):
            for part in _minibatches(samples, num_minibatches, order):
                with phases.measure("forward_backward"):
                    self._accumulate(work, part, tally, first=number == 0, updated=self.updates > updates_before)
                factor = schedule * warmup_factor(self.updates, config.warmup_steps)
                rate = config.learning_rate * factor
                with phases.measure("optimizer"):
                    norm, updated = optimizer_step(self.policy, self.optimizer, rate, config.max_grad_norm)
                    if self.critic is not None:
                        self.critic.update(factor, config.max_grad_norm)
                norms.append(norm)
                self.updates += updated
        self.steps += 1
        trained = [samples[index] for index in self._active(work, range(len(samples)))]
        rounds = config.ppo_epochs * num_minibatches
        return StepMetrics(
            step=self.steps,
            loss=tally.loss / rounds,
            grad_norm=float(np.max(norms)),
            **tally.means(),
            engine_kl=tally.engine_kl("text", "images"),
            engine_kl_tokens=tally.engine_kl_tokens,
            engine_kl_text=tally.engine_kl("text"),
            engine_kl_images=tally.engine_kl("images"),
            num_tokens=tally.num_tokens,
            num_sequences=len(trained),
            num_images=len({span.sha256 for sample in trained for span in sample.sequence.spans}),
            num_episodes=len({sample.episode_id for sample in samples}),
            ref_kl=tally.ref_kl,
            teacher_kl=work.teacher_kl,
            value_loss=tally.value_loss / rounds if self.critic else None,
            explained_variance=work.estimate.explained_variance,
            num_updates=self.updates - updates_before,
            lr=rate,
            computed_tokens=tally.computed_tokens,
        )

    def _valid_samples(
        self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]
    ) -> tuple[list[TrainingSample], dict[str, int]]:
        """Return the samples of episodes without invalid sequences, and counts of the others by cause."""
        causes = check_episodes(samples, lambda sequence: self.policy.check(sequence, images))
        return [sample for sample in samples if sample.episode_id not in causes], dict(Counter(causes.values()))

    @property
    def _scores_first(self) -> bool:
        """Whether sequences are scored before the first update, so that images are encoded more than once."""
        reference = self.config.kl_loss_coef and self.policy.config.lora
        shared_critic = self.critic is not None and self.critic.own is None
        return bool(self.objective.needs_proximal or reference or shared_critic)

    def _prepare(self, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]) -> _StepInputs:
        """Score the sequences under the initial weights as far as the algorithm needs it."""
        config, rows = self.config, [sample.sequence for sample in samples]
        proximal = self.policy.logprobs(rows, images) if self.objective.needs_proximal else None
        reference = self.policy.reference_logprobs(rows, images) if config.kl_loss_coef else None
        if self.critic is None:
            estimate = group_advantages_of(samples)
        else:
            if self.steps == 0 and samples:
                self.critic.set_initial_value(mean_reward(samples))
            estimate = gae_advantages_of(samples, self.critic.values(rows, images), config.critic)
        check_groups(samples, self.algorithm)
        check_estimate(samples, estimate, has_critic=self.critic is not None)
        teacher_kl = None
        if self.teacher is not None and config.distillation is not None:
            estimate, teacher_kl = with_teacher(samples, estimate, self.teacher(rows, images), config.distillation)
        lengths = [sample.reply_lengths() for sample in samples]
        return _StepInputs(samples, images, estimate, lengths, proximal, reference, teacher_kl)

    def _active(self, work: _StepInputs, part: Sequence[int]) -> list[int]:
        """Return the sequences with a gradient; those with zero advantage count only in the mean."""
        if self.critic is not None or self.teacher or self.config.kl_loss_coef or self.config.entropy_coeff:
            return list(part)
        return [index for index in part if work.samples[index].has_gradient]

    def _accumulate(
        self, work: _StepInputs, part: Sequence[int], tally: StepMetricsAccumulator, *, first: bool, updated: bool
    ) -> None:
        """Add the gradient of one minibatch to the policy and the critic."""
        config, algorithm, objective, samples = self.config, self.algorithm, self.objective, work.samples
        norm = objective.loss_norm
        counts = [sum(work.reply_lengths[index]) for index in part]
        episodes, weights = [samples[index].episode_id for index in part], [samples[index].weight for index in part]
        factors = token_weights(episodes, counts, weights, config.loss_divisor, norm)
        coefficients = dict(zip(part, factors, strict=True))
        means = dict(zip(part, token_weights(episodes, counts, weights), strict=True))
        chosen = self._active(work, part)
        used: Counter[str] = Counter()

        def targets(batch: TrainBatch) -> tuple[Tensor, Tensor, Tensor]:
            rows, estimate = [chosen[index] for index in batch.rows], work.estimate
            weights_W = _per_token([means[index] for index in rows], batch.rows_W)
            return _concat(estimate.returns, rows, weights_W), _concat(estimate.values, rows, weights_W), weights_W

        def loss(batch: TrainBatch, scores: TokenScores) -> Tensor:
            rows, logprobs_W = [chosen[index] for index in batch.rows], scores.logprobs_W
            coefficients_W = _per_token([coefficients[index] for index in rows], batch.rows_W)
            advantages_W = _concat(work.estimate.advantages, rows, logprobs_W)
            replies_W = _reply_index([length for index in rows for length in work.reply_lengths[index]], logprobs_W)
            if not config.decoupled_loss:
                proximal_W = None
            elif work.proximal is None:
                proximal_W = logprobs_W.detach()
            else:
                proximal_W = _concat(work.proximal, rows, logprobs_W)
            result = clipped_loss(
                logprobs_W,
                batch.behavior_logprobs_W,
                advantages_W,
                objective.clip_ratio_low,
                objective.clip_ratio_high,
                proximal_W,
                config.importance_weight_cap,
                config.importance_weight_mode,
                config.dual_clip,
                replies_W if algorithm.ratio_level == "reply" else None,
                importance_weight_min=config.importance_weight_min,
                importance_weight_level=config.importance_weight_level,
                weighted_replies=replies_W,
                policy_loss=algorithm.policy_loss,
            )
            value = (result.values * coefficients_W).sum()
            if algorithm.ratio_level == "token" or self.critic is None:
                check_loss(value, logprobs_W, advantages_W, coefficients_W, result)
            totals = np.bincount(batch.rows_W.cpu(), coefficients_W.cpu(), len(rows))
            for index, total in zip(rows, totals.tolist(), strict=True):
                used[samples[index].episode_id] += total
            if config.entropy_coeff:
                value = value - config.entropy_coeff * (scores.entropies_W * coefficients_W).sum()
            if work.reference is not None:
                reference_W = _concat(work.reference, rows, logprobs_W)
                penalty_W = kl_estimate(reference_W, logprobs_W, config.kl_estimator)
                value = value + config.kl_loss_coef * (penalty_W * coefficients_W).sum()
                tally.add_reference(kl_estimate(reference_W, logprobs_W))
            replayed_W = _per_token([samples[index].is_replayed for index in rows], batch.rows_W) > 0
            tally.add(batch, scores, result, value, first=first, updated=updated, replayed_W=replayed_W)
            if self.critic is not None and self.critic.own is None:
                extra = self.critic.loss(scores.hidden_WH, targets(batch))
                tally.value_loss += extra.item()
                value = value + extra
            return value

        sequences = [samples[index].sequence for index in chosen]
        plan = self.policy.plan(sequences, work.images)
        self.policy.accumulate(plan, loss, entropy_gradient=config.entropy_coeff > 0)
        active = [samples[index] for index in chosen]
        check_weights(used, active, len(set(episodes)), sum(counts), norm, config.loss_divisor)
        if self.critic is not None and self.critic.own is not None:
            tally.value_loss += self.critic.accumulate(sequences, work.images, targets)


def _per_token(values_B: Sequence[float], rows_W: Tensor) -> Tensor:
    """Return the value of each token's sequence, float32[W]."""
    return torch.tensor(values_B, dtype=torch.float32, device=rows_W.device).index_select(0, rows_W)


def _concat(values: Sequence[np.ndarray], rows: Sequence[int], like_W: Tensor) -> Tensor:
    """Return the token values of the sequences on the device of `like_W`."""
    return torch.from_numpy(np.concatenate([values[index] for index in rows])).to(like_W.device)


def _reply_index(lengths: Sequence[int], like_W: Tensor) -> Tensor:
    """Return the index of each token's reply in the micro-batch, int64[W]."""
    return torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(like_W.device)


def _minibatches(samples: Sequence[TrainingSample], count: int, order: np.random.Generator) -> list[list[int]]:
    """Split the samples randomly into `count` lists of indices, keeping episodes together."""
    episodes = list(dict.fromkeys(sample.episode_id for sample in samples))  # ids are random
    order.shuffle(episodes)
    part_of = {episode: position * count // len(episodes) for position, episode in enumerate(episodes)}
    parts: list[list[int]] = [[] for _ in range(count)]
    for index, sample in enumerate(samples):
        parts[part_of[sample.episode_id]].append(index)
    return parts
