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
IMAGE_SENSITIVITY = "policy/image_sensitivity"


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


def find_alerts(metrics: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], bounds: HealthConfig) -> list[Alert]:
    """Return the alerts of a step. `earlier`: metrics of the previous steps, oldest first."""
    alerts: list[Alert] = []

    def at_least(metric: str, bound: float, cause: str, hint: str) -> None:
        value = metrics.get(metric)
        if value is not None and value < bound:
            alerts.append(Alert(metric, value, f">= {bound:g}", cause, hint))

    def at_most(metric: str, bound: float, cause: str, hint: str) -> None:
        value = metrics.get(metric)
        if value is not None and value > bound:
            alerts.append(Alert(metric, value, f"<= {bound:g}", cause, hint))

    at_least(
        "replies/parse_rate",
        bounds.min_parse_rate,
        "the model does not follow the agent's action format",
        "check agent.action_format, set agent.prompt_style to full, fine-tune first with deskhand sft, "
        "or lower trainer.learning_rate",
    )
    at_most(
        "replies/truncation_rate",
        bounds.max_truncation_rate,
        "replies exceed the token limit",
        "raise agent.max_new_tokens",
    )
    at_most(ZERO_VARIANCE, bounds.max_zero_variance_fraction, *_zero_variance_hint(metrics.get("reward/mean")))
    at_most(
        ERRORED,
        bounds.max_error_fraction,
        "desktops, engine or evaluators fail",
        "see the episode.errored events in log.jsonl, and run deskhand doctor",
    )
    at_most(
        "train/engine_kl_text",
        bounds.max_engine_kl_text,
        "engine and trainer disagree with the same weights",
        "use one dtype for both; python -m benchmarks.exactness measures it",
    )
    at_most(
        "train/engine_kl_images",
        bounds.max_engine_kl_images,
        "engine and trainer disagree with the same weights on tokens after an image",
        "use one dtype and one image preprocessing for both; python -m benchmarks.exactness measures it",
    )
    at_most(
        "train/masked_frac",
        bounds.max_masked_fraction,
        "the trained samples are far off-policy",
        "lower loop.max_staleness or trainer.learning_rate",
    )
    at_most(
        "train/clip_frac",
        bounds.max_clip_fraction,
        "a step moves the policy out of its trust region",
        "lower trainer.learning_rate, trainer.ppo_epochs or trainer.num_minibatches",
    )
    at_most(
        "train/ratio_max",
        bounds.max_ratio,
        "a token has become much more likely within one step",
        "lower trainer.learning_rate, trainer.ppo_epochs or trainer.num_minibatches, or set trainer.dual_clip",
    )
    at_most(
        "train/num_rejected",
        0,
        "recorded sequences are inconsistent with their images or tokens",
        "they are not trained; please report the causes in train/rejected/*",
    )
    if metrics.get("train/num_tokens"):
        at_least(
            "train/entropy",
            bounds.min_entropy,
            "replies hardly vary, so groups will have no signal",
            "lower trainer.learning_rate, raise trainer.clip_ratio_high, or set trainer.kl_loss_coef",
        )
        alerts += _compare(metrics, [past for past in earlier if past.get("train/num_tokens")], bounds)
    at_least(
        IMAGE_SENSITIVITY,
        bounds.min_image_sensitivity,
        "swapped screenshots change nothing: the policy ignores its images",
        "check that the engine receives images; python -m benchmarks.image_sensitivity measures it",
    )
    return alerts


def no_signal_alert(zero_variance: int, completed: int, reward: float | None, bounds: HealthConfig) -> Alert | None:
    """Return the alert of a run that makes no step, checked after every `bounds.no_signal_groups` completed groups.

    Args:
        zero_variance: Number of the `completed` groups since the last step whose rewards were equal.
        reward: Mean reward since the last step.
    """
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
    norm, entropy = metrics["train/grad_norm"], metrics["train/entropy"]
    if not math.isfinite(norm):
        alerts.append(
            Alert(
                "train/grad_norm",
                norm,
                "finite",
                "a gradient overflowed; the update was skipped",
                "lower trainer.learning_rate, or use bfloat16 instead of float16",
            )
        )
    if len(earlier) < bounds.baseline_steps:
        return alerts
    norms = [past["train/grad_norm"] for past in earlier if math.isfinite(past["train/grad_norm"])]
    usual = statistics.median(norms) if norms else 0.0
    if math.isfinite(norm) and usual > 0 and norm > bounds.grad_norm_spike_factor * usual:
        alerts.append(
            Alert(
                "train/grad_norm",
                norm,
                f"<= {bounds.grad_norm_spike_factor:g} times the median {usual:.3g}",
                "a few tokens dominate the step",
                "lower trainer.importance_weight_cap, or set trainer.dual_clip",
            )
        )
    usual = statistics.median(past["train/entropy"] for past in earlier)
    if entropy > bounds.entropy_spike_factor * usual:
        alerts.append(
            Alert(
                "train/entropy",
                entropy,
                f"<= {bounds.entropy_spike_factor:g} times the median {usual:.3g}",
                "the policy is collapsing into random replies",
                "resume from an earlier checkpoint with a lower trainer.learning_rate",
            )
        )
    explained = metrics.get("train/explained_variance")
    if explained is not None and explained < 0:
        alerts.append(
            Alert(
                "train/explained_variance",
                explained,
                ">= 0",
                "the critic predicts worse than a constant",
                "raise trainer.critic.learning_rate, or set trainer.critic.backbone to separate",
            )
        )
    return alerts
