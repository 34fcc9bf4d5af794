"""Health checks of a training run: alerts with the metric, threshold, likely cause and fix.

Used by `recipes.training_loop`; start with `find_alerts`, which checks the metrics of a step against `HealthConfig`.
The other functions return alerts that are raised between steps, when no step may ever follow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deskhand.config.loop import HealthConfig

ZERO_VARIANCE, ERRORED, SOLVED_AT_START = "groups/zero_variance_frac", "episodes/errored_frac", "tasks/solved_at_start"
IMAGE_SENSITIVITY, ENTROPY, GRAD_NORM = "policy/image_sensitivity", "train/entropy", "train/grad_norm"


@dataclass(frozen=True, slots=True)
class Alert:
    """A metric beyond its threshold."""

    metric: str
    value: float
    threshold: str
    cause: str
    hint: str

    def line(self) -> str:
        return f"{self.metric} is {self.value:.3g} (threshold: {self.threshold}): {self.cause}; {self.hint}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_RULES = (
    (
        "replies/parse_rate", ">=", "min_parse_rate", "the model does not follow the agent's action format",
        "check agent.action_format, set agent.prompt_style to full, fine-tune first with deskhand sft, "
        "or lower trainer.learning_rate",
    ),
    (
        "replies/truncation_rate", "<=", "max_truncation_rate", "replies exceed the token limit",
        "raise agent.max_new_tokens",
    ),
    (ZERO_VARIANCE, "<=", "max_zero_variance_fraction", "", ""),
    (
        ERRORED, "<=", "max_error_fraction", "desktops, engine or evaluators fail",
        "see the episode.errored events in log.jsonl, and run deskhand doctor",
    ),
    (
        "train/engine_kl_text", "<=", "max_engine_kl_text", "engine and trainer disagree with the same weights",
        "use one dtype for both; python -m benchmarks.exactness measures it",
    ),
    (
        "train/engine_kl_images", "<=", "max_engine_kl_images",
        "engine and trainer disagree with the same weights on tokens after an image",
        "use one dtype and one image preprocessing for both; python -m benchmarks.exactness measures it",
    ),
    (
        "train/masked_frac", "<=", "max_masked_fraction", "the trained samples are far off-policy",
        "lower loop.max_staleness or trainer.learning_rate",
    ),
    (
        "train/clip_frac", "<=", "max_clip_fraction", "a step moves the policy out of its trust region",
        "lower trainer.learning_rate, trainer.ppo_epochs or trainer.num_minibatches",
    ),
    (
        "train/ratio_max", "<=", "max_ratio", "a token has become much more likely within one step",
        "lower trainer.learning_rate, trainer.ppo_epochs or trainer.num_minibatches, or set trainer.dual_clip",
    ),
    (
        "train/num_rejected", "<=", "", "recorded sequences are inconsistent with their images or tokens",
        "they are not trained; please report the causes in train/rejected/*",
    ),
    (
        ENTROPY, ">=", "min_entropy", "replies hardly vary, so groups will have no signal",
        "lower trainer.learning_rate, raise trainer.clip_ratio_high, or set trainer.kl_loss_coef",
    ),
    (
        IMAGE_SENSITIVITY, ">=", "min_image_sensitivity",
        "swapped screenshots change nothing: the policy ignores its images",
        "check that the engine receives images; python -m benchmarks.image_sensitivity measures it",
    ),
)  # fmt: skip
"""(metric, comparison, field of `HealthConfig` with the threshold (none is 0), cause, hint)."""


def find_alerts(metrics: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], bounds: HealthConfig) -> list[Alert]:
    """Return the alerts of a step. `earlier`: metrics of the previous steps, oldest first."""
    alerts: list[Alert] = []
    is_trained = bool(metrics.get("train/num_tokens"))
    for metric, comparison, field, cause, hint in _RULES:
        value, bound = metrics.get(metric), getattr(bounds, field) if field else 0
        if metric == ZERO_VARIANCE:
            cause, hint = _zero_variance_hint(metrics.get("reward/mean"))
        if (
            value is not None
            and (is_trained or metric != ENTROPY)
            and (value < bound if comparison == ">=" else value > bound)
        ):
            alerts.append(Alert(metric, value, f"{comparison} {bound:g}", cause, hint))
        if is_trained and metric == ENTROPY:
            alerts += _compare(metrics, [past for past in earlier if past.get("train/num_tokens")], bounds)
    return alerts


def no_signal_alert(zero_variance: int, completed: int, reward: float | None, bounds: HealthConfig) -> Alert | None:
    """Return the alert of a run that makes no step, checked after every `bounds.no_signal_groups` completed groups.
    `zero_variance` of the `completed` groups since the last step had equal rewards; `reward` is the mean since then."""
    if not completed or completed % bounds.no_signal_groups:
        return None
    fraction, bound = zero_variance / completed, bounds.max_zero_variance_fraction
    return Alert(ZERO_VARIANCE, fraction, f"<= {bound:g}", *_zero_variance_hint(reward)) if fraction > bound else None


def solved_at_start_alert(family: str) -> Alert:
    """Return the alert of a task that an episode solved without acting."""
    return Alert(
        SOLVED_AT_START,
        1.0,
        "0",
        f"{family}: a no-op episode scored 1: the start state already satisfies the check",
        f"change its setup, or exclude it (suite.exclude: [{family}]); with desktop.skip_reset an earlier episode may "
        "have left this state",
    )


def all_errored_alert(family: str, episodes: int, message: str) -> Alert:
    """Return the alert of a group that completed without any score."""
    return Alert(
        ERRORED,
        1.0,
        "< 1",
        f"{family}: all {episodes} episodes of a group errored; last error: {message}",
        f"fix the error, or exclude the task (suite.exclude: [{family}])",
    )


def _zero_variance_hint(reward: float | None) -> tuple[str, str]:
    solved = reward is not None and reward > 0.5
    return (
        f"most tasks are {'solved' if solved else 'failed'} by every episode of their group",
        f"choose {'harder' if solved else 'easier'} families, or raise loop.group_size",
    )


def _compare(metrics: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], bounds: HealthConfig) -> list[Alert]:
    """Return the alerts of metrics that are judged against earlier steps."""
    alerts: list[Alert] = []

    def alert(is_beyond: bool, metric: str, threshold: str, cause: str, hint: str) -> None:
        if is_beyond:
            alerts.append(Alert(metric, metrics[metric], threshold, cause, hint))

    norm, entropy, explained = metrics[GRAD_NORM], metrics[ENTROPY], metrics.get("train/explained_variance")
    alert(
        not math.isfinite(norm), GRAD_NORM, "finite", "a gradient overflowed; the update was skipped",
        "lower trainer.learning_rate, or use bfloat16 instead of float16",
    )  # fmt: skip
    if len(earlier) < bounds.baseline_steps:
        return alerts
    norms = [past[GRAD_NORM] for past in earlier if math.isfinite(past[GRAD_NORM])]
    usual, factor = statistics.median(norms) if norms else 0.0, bounds.grad_norm_spike_factor
    alert(
        math.isfinite(norm) and usual > 0 and norm > factor * usual, GRAD_NORM,
        f"<= {factor:g} times the median {usual:.3g}", "a few tokens dominate the step",
        "lower trainer.importance_weight_cap, or set trainer.dual_clip",
    )  # fmt: skip
    usual, factor = statistics.median(past[ENTROPY] for past in earlier), bounds.entropy_spike_factor
    alert(
        entropy > factor * usual, ENTROPY, f"<= {factor:g} times the median {usual:.3g}",
        "the policy is collapsing into random replies",
        "resume from an earlier checkpoint with a lower trainer.learning_rate",
    )  # fmt: skip
    alert(
        explained is not None and explained < 0, "train/explained_variance", ">= 0",
        "the critic predicts worse than a constant",
        "raise trainer.critic.learning_rate, or set trainer.critic.backbone to separate",
    )  # fmt: skip
    return alerts
