"""Health checks of a training run: alerts with the metric, threshold, likely cause and fix.

Used by `recipes.training_loop`; start with `find_alerts`, which checks the metrics of a step against `HealthConfig` by
the rules of `recipes.health_rules`. The other functions return alerts that are raised between steps, when no step may
ever follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deskhand.config.loop import HealthConfig
from deskhand.errors import HealthError
from deskhand.recipes.health_checks import Finding, Steps, outcome_facts
from deskhand.recipes.health_rules import IMAGE_SENSITIVITY, PUBLISH_KL, RULES, Alert

_MAX_ENGINE_KL = {("hf", "float32"): 1e-9, ("hf", "bfloat16"): 1e-2, ("hf", "float16"): 1e-2}
_MAX_SERVER_KL = 1e-2


def find_alerts(metrics: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], bounds: HealthConfig) -> list[Alert]:
    """Return the alerts of a step. `earlier`: metrics of the previous steps, oldest first."""
    trained = [past for past in earlier if past.get("train/num_tokens")]
    steps, trained_steps = Steps(metrics, earlier, bounds), Steps(metrics, trained, bounds)
    is_trained = bool(metrics.get("train/num_tokens"))
    return [
        rule.alert(finding)
        for rule in RULES.values()
        if rule.check is not None and (is_trained or not rule.needs_training)
        for finding in rule.check(trained_steps if rule.needs_training else steps)
    ]


def new_alerts(alerts: Sequence[Alert], earlier: Sequence[Alert]) -> list[Alert]:
    """Return the alerts of a step whose rule and metric raised none at the step before (`earlier`)."""
    active = {(alert.rule, alert.metric) for alert in earlier}
    return [alert for alert in alerts if (alert.rule, alert.metric) not in active]


def resolve_bounds(bounds: HealthConfig, backend: str, dtype: str, ratio_level: str) -> HealthConfig:
    """Return the bounds with those that depend on engine, dtype and the algorithm's ratios, unless they are set.

    The maximum divergence of engine and trainer with `hf` in float32 is above that of every healthy step of
    `benchmarks.faults`, rows 28 to 31, on a processor (at most 1.2e-13). Other engines and dtypes were not measured;
    for them the jump rules notice a change that is small compared with the bound.
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


def no_signal_alert(zero_variance: int, completed: int, reward: float | None, bounds: HealthConfig) -> Alert | None:
    """Return the alert of a run that makes no step; the caller checks it after every `bounds.no_signal_groups` groups.
    `zero_variance` of the `completed` groups since the last step had equal rewards; `reward` is the mean since then."""
    if completed < bounds.no_signal_groups:
        return None
    fraction, bound = zero_variance / completed, bounds.max_zero_variance_fraction
    if fraction <= bound:
        return None
    return RULES["no_signal"].alert(Finding(fraction, f"<= {bound:g}", outcome_facts(reward)))


def solved_at_start_alert(family: str) -> Alert:
    """Return the alert of a task that an episode solved without acting."""
    return RULES["solved_at_start"].alert(Finding(1.0, "0", {"family": family}))


def all_errored_alert(family: str, episodes: int, message: str) -> Alert:
    """Return the alert of a group that completed without any score."""
    facts = {"family": family, "episodes": episodes, "message": message}
    return RULES["group_errored"].alert(Finding(1.0, "< 1", facts))
