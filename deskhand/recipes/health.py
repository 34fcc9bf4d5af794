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
from deskhand.errors import HealthError

ZERO_VARIANCE, ERRORED, SOLVED_AT_START = "groups/zero_variance_frac", "episodes/errored_frac", "tasks/solved_at_start"
IMAGE_SENSITIVITY, ENTROPY, GRAD_NORM = "policy/image_sensitivity", "train/entropy", "train/grad_norm"
PUBLISH_KL, STALE, LENGTH, REWARD = "policy/publish_kl", "episodes/stale_frac", "replies/mean_tokens", "reward/mean"
WEIGHT_MEAN, EXPLAINED = "train/importance_weight_mean", "train/explained_variance"
ENGINE_KL = ("train/engine_kl_text", "train/engine_kl_images")
MIN_FAMILY_EPISODES = 64
"""Trained episodes expected of a family before its share is judged."""
_SPIKE = 100.0
"""Ratio of the divergence of engine and trainer to its largest earlier value that is an alert by itself."""
_MAX_ENGINE_KL = {("hf", "float32"): 1e-9, ("hf", "bfloat16"): 1e-2, ("hf", "float16"): 1e-2}
_MAX_SERVER_KL = 1e-2
_CRITIC_NOISE = 0.5
"""An untrained critic explains a little less than nothing, by the noise of a few episodes."""
_MIN_VARIANCE = 0.005
"""Smallest variance of the mean reward of a step."""


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
        "use one dtype for both; in a checkout, python -m benchmarks.exactness measures it",
    ),
    (
        "train/engine_kl_images", "<=", "max_engine_kl_images",
        "engine and trainer disagree with the same weights on tokens after an image",
        "use one dtype and one image preprocessing for both; in a checkout, python -m benchmarks.exactness measures it",
    ),
    (
        PUBLISH_KL, "<=", "max_engine_kl_images", "the engine does not sample from the weights that it was just sent",
        "compare the engine's weights or adapter with the checkpoint; in a checkout, python -m benchmarks.exactness "
        "measures it",
    ),
    (
        "train/approx_kl", "<=", "max_approx_kl", "the policy is far from the weights that sampled the episodes",
        "lower loop.max_staleness or trainer.learning_rate",
    ),
    (
        "train/masked_frac", "<=", "max_masked_fraction", "the trained samples are far off-policy",
        "lower loop.max_staleness or trainer.learning_rate",
    ),
    (
        "train/replay_masked_frac", "<=", "max_replay_masked_fraction", "the replayed samples are far off-policy",
        "lower loop.max_replay_staleness or trainer.learning_rate",
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
        "check that the engine receives images; in a checkout, python -m benchmarks.image_sensitivity measures it",
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
            and bound is not None
            and (is_trained or metric != ENTROPY)
            and not (value >= bound if comparison == ">=" else value <= bound)
        ):
            alerts.append(Alert(metric, value, f"{comparison} {bound:g}", cause, hint))
        if is_trained and metric == ENTROPY:
            alerts += _against_one(metrics, bounds) + _family_alerts(metrics, bounds)
            alerts += _compare(metrics, [past for past in earlier if past.get("train/num_tokens")], bounds)
    return alerts


def resolve_bounds(bounds: HealthConfig, backend: str, dtype: str, ratio_level: str) -> HealthConfig:
    """Return the bounds with those that depend on engine, dtype and the algorithm's ratios, unless they are set.

    The maximum divergence of engine and trainer is 100 times the worst healthy step measured, or less
    (`benchmarks.faults`, rows 28 to 31).
    """
    limit = _MAX_ENGINE_KL.get((backend, dtype), _MAX_SERVER_KL)
    defaults = {"max_engine_kl_text": limit, "max_engine_kl_images": limit}
    defaults["max_clip_fraction"] = 0.5 if ratio_level == "token" else 1.0
    return bounds.model_copy(update={name: value for name, value in defaults.items() if getattr(bounds, name) is None})


def check_probes(earlier: Sequence[Mapping[str, Any]], step: int, bounds: HealthConfig) -> None:
    """Raise `HealthError` if the last probes of vision or of the published weights all failed. `earlier`: metrics of
    all steps."""
    probes = [entry[IMAGE_SENSITIVITY] for entry in earlier if IMAGE_SENSITIVITY in entry]
    limit = bounds.max_failed_vision_probes
    last = probes[-limit:]
    if limit and len(last) == limit and max(last) < bounds.min_image_sensitivity:
        raise HealthError(
            f"step {step}: the policy ignores its screenshots: in the last {len(last)} vision probes swapped "
            f"screenshots changed its replies by at most {max(last):.2g} nats "
            f"(loop.health.min_image_sensitivity: {bounds.min_image_sensitivity:g}); "
            "check that the engine receives images"
        )
    probes = [entry[PUBLISH_KL] for entry in earlier if PUBLISH_KL in entry]
    limit, bound = bounds.max_failed_publish_probes, bounds.max_engine_kl_images
    last = probes[-limit:]
    if limit and bound is not None and len(last) == limit and not min(last) <= bound:
        raise HealthError(
            f"step {step}: invariant published_weights: in the last {len(last)} updates the engine did not sample from "
            f"the weights that it was sent (at least {min(last):.2g} nats per token, "
            f"loop.health.max_engine_kl_images: {bound:g}); compare its weights with the checkpoint"
        )


def _family_alerts(metrics: Mapping[str, Any], bounds: HealthConfig) -> list[Alert]:
    """Return the alerts of families that are trained much less often than they are started, although their groups have
    signal."""
    alerts: list[Alert] = []
    for name, trained in metrics.items():
        if not (name.startswith("family/") and name.endswith("/trained_frac_total")):
            continue
        family = name.removeprefix("family/").removesuffix("/trained_frac_total")
        started, equal = (
            metrics.get(f"family/{family}/{kind}_frac_total", 0.0) for kind in ("started", "zero_variance")
        )
        bound = bounds.min_family_ratio * started
        if metrics.get("episodes/trained", 0) * started >= MIN_FAMILY_EPISODES and trained < bound and equal <= started:
            cause = f"{family} is trained less often than it is started: its episodes are stale or errored"
            hint = f"raise loop.max_staleness, fix its errors, or exclude it (suite.exclude: [{family}])"
            alerts.append(Alert(name, trained, f">= {bound:.3g}", cause, hint))
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


def _against_one(metrics: Mapping[str, Any], bounds: HealthConfig) -> list[Alert]:
    """Return the alerts of metrics that are 1 in a healthy step."""
    alerts = list[Alert]()
    mean, bias = metrics.get(WEIGHT_MEAN), bounds.max_importance_weight_bias
    if mean is not None and not abs(mean - 1.0) <= bias:
        cause = "recorded log-probs are not those of the policy that sampled, or samples are far off-policy"
        hint = "lower loop.max_staleness; in a checkout, python -m benchmarks.exactness compares engine and trainer"
        alerts.append(Alert(WEIGHT_MEAN, mean, f"1 +- {bias:g}", cause, hint))
    if metrics.get("train/num_updates") == 0:
        cause, hint = (
            "no update was made: the gradient is zero or not finite",
            "check trainer.algorithm and the rewards",
        )
        alerts.append(Alert("train/num_updates", 0, ">= 1", cause, hint))
    return alerts


def _recent(
    metric: str, metrics: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], bounds: HealthConfig
) -> list[float]:
    """Return the metric's last values, as many as a baseline needs; empty if this step or one of them has none."""
    steps = [*earlier, metrics][-bounds.baseline_steps :]
    found = [step[metric] for step in steps if metric in step]
    return found if metric in metrics and len(found) == bounds.baseline_steps else []


def _reward_drop(steps: Sequence[Mapping[str, Any]], bounds: HealthConfig) -> tuple[float, float] | None:
    """Return how many standard errors the reward of the last window lies below the best earlier window, and that
    window's mean; None if there are less than two windows."""
    rewards, window = [step[REWARD] for step in steps if REWARD in step], bounds.reward_window
    if len(rewards) < 2 * window:
        return None
    last = rewards[-window:]
    best = max((rewards[at : at + window] for at in range(len(rewards) - 2 * window + 1)), key=statistics.fmean)
    # The floor keeps windows of almost equal rewards from making every small change significant.
    error = math.sqrt(max(statistics.variance(last) + statistics.variance(best), _MIN_VARIANCE) / window)
    return (statistics.fmean(best) - statistics.fmean(last)) / error, statistics.fmean(best)


def _compare(metrics: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], bounds: HealthConfig) -> list[Alert]:
    """Return the alerts of metrics that are judged against earlier steps."""
    alerts: list[Alert] = []

    def alert(is_beyond: bool, metric: str, threshold: str, cause: str, hint: str) -> None:
        if is_beyond:
            alerts.append(Alert(metric, metrics[metric], threshold, cause, hint))

    for metric, field in (*zip(ENGINE_KL, ("max_engine_kl_text", "max_engine_kl_images"), strict=True),):
        known, bound = [past[metric] for past in earlier if metric in past], getattr(bounds, field)
        if metric in metrics and bound and len(known) >= bounds.baseline_steps:
            worst = max(known)
            alert(
                bound / _SPIKE < metrics[metric] <= bound and metrics[metric] > _SPIKE * worst, metric,
                f"<= {_SPIKE:g} times the earlier {worst:.3g}", "engine and trainer have begun to disagree",
                "compare the engine's log of the last weight update; in a checkout, python -m benchmarks.exactness "
                "measures it",
            )  # fmt: skip
    norm, entropy = metrics[GRAD_NORM], metrics[ENTROPY]
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
    lengths = [past[LENGTH] for past in earlier if LENGTH in past]
    if LENGTH in metrics and len(lengths) >= bounds.baseline_steps:
        usual, factor = statistics.median(lengths), bounds.length_change_factor
        alert(
            not usual / factor <= metrics[LENGTH] <= factor * usual, LENGTH,
            f"within a factor {factor:g} of the median {usual:.3g}", "replies have become much longer or shorter",
            "check agent.max_new_tokens and the loss normalization of trainer.algorithm",
        )  # fmt: skip
    drop = _reward_drop([*earlier, metrics], bounds)
    if drop is not None:
        alert(
            drop[0] > bounds.reward_drop_sigmas, REWARD,
            f"at most {bounds.reward_drop_sigmas:g} standard errors below the earlier {drop[1]:.3g}",
            "training makes the policy worse",
            "go back to an earlier checkpoint with a lower trainer.learning_rate; check the reward and the algorithm",
        )  # fmt: skip
    usual, factor = statistics.median(past[ENTROPY] for past in earlier), bounds.entropy_spike_factor
    alert(
        entropy > factor * usual, ENTROPY, f"<= {factor:g} times the median {usual:.3g}",
        "the policy is collapsing into random replies",
        "resume from an earlier checkpoint with a lower trainer.learning_rate",
    )  # fmt: skip
    stale = _recent(STALE, metrics, earlier, bounds)
    if stale:
        mean, bound = statistics.fmean(stale), bounds.max_stale_fraction
        alert(
            mean > bound, STALE, f"<= {bound:g} in the mean of {len(stale)} steps, got {mean:.2g}",
            "episodes end too late to be trained",
            "raise loop.max_staleness or loop.groups_per_step, or lower loop.max_concurrent_episodes",
        )  # fmt: skip
    explained = _recent(EXPLAINED, metrics, earlier, bounds)
    if explained:
        alert(
            statistics.median(explained) < -_CRITIC_NOISE, EXPLAINED, f">= {-_CRITIC_NOISE:g} in the median",
            "the critic predicts worse than a constant",
            "raise trainer.critic.learning_rate, or set trainer.critic.backbone to separate",
        )  # fmt: skip
    return alerts
