"""How the rules of `recipes.health_rules` judge the metrics of a step.

A check returns a function of `Steps` that yields the findings of a step: usually none or one.

Invariant: a fraction of groups, episodes or replies is judged over enough of them, if need be those of several steps,
so that a small step raises no alert by chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deskhand.config.loop import HealthConfig

SPIKE = 100.0
"""Ratio of the divergence of engine and trainer to its largest earlier value that is an alert by itself."""
MIN_EPISODES, MIN_REPLIES = 16, 32
"""Episodes and replies over which a fraction of them is judged."""
MIN_FAMILY_GROUPS = 8
"""Trained groups expected of a family, or stale groups of all, before the family's share of them is judged."""
CRITIC_NOISE = 0.5
"""An untrained critic explains a little less than nothing, by the noise of a few episodes."""
_MIN_VARIANCE = 0.005
"""Smallest variance of the mean reward of a step."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Metrics of a step and of the steps before it, oldest first, and the thresholds."""

    metrics: Mapping[str, Any]
    earlier: Sequence[Mapping[str, Any]]
    bounds: HealthConfig

    @property
    def has_baseline(self) -> bool:
        return len(self.earlier) >= self.bounds.baseline_steps

    def known(self, metric: str) -> list[float]:
        """Return the values of the earlier steps that measured the metric."""
        return [past[metric] for past in self.earlier if metric in past]


@dataclass(frozen=True, slots=True)
class Finding:
    """A value beyond its threshold. `facts` complete the texts of the rule; `metric` replaces the one of the rule."""

    value: float
    threshold: str
    facts: Mapping[str, object] = field(default_factory=dict)
    metric: str = ""


Check = Callable[[Steps], Iterator[Finding]]
Comparison = Literal[">=", "<="]


def _holds(value: float, comparison: Comparison, bound: float) -> bool:
    return value >= bound if comparison == ">=" else value <= bound  # NaN never holds


def bounded(metric: str, comparison: Comparison, setting: str) -> Check:
    """Check a metric against a field of `HealthConfig`; None there disables it."""

    def check(steps: Steps) -> Iterator[Finding]:
        value, bound = steps.metrics.get(metric), getattr(steps.bounds, setting)
        if value is not None and bound is not None and not _holds(value, comparison, bound):
            yield Finding(value, f"{comparison} {bound:g}")

    return check


def pooled(
    metric: str, count: str, minimum: Callable[[HealthConfig], int], comparison: Comparison, setting: str
) -> Check:
    """Check a fraction over the last steps that have `minimum` items together; the metric `count` is their number."""

    def check(steps: Steps) -> Iterator[Finding]:
        if not steps.metrics.get(count):
            return
        total, hits, needed = 0, 0.0, minimum(steps.bounds)
        for entry in reversed([*steps.earlier, steps.metrics]):
            number = entry.get(count, 0)
            if number and metric in entry:
                total, hits = total + number, hits + number * entry[metric]
            if total >= needed:
                break
        else:
            return
        value, bound = hits / total, getattr(steps.bounds, setting)
        if not _holds(value, comparison, bound):
            yield Finding(
                value, f"{comparison} {bound:g} of the last {total}", outcome_facts(steps.metrics.get("reward/mean"))
            )

    return check


def outcome_facts(reward: float | None) -> dict[str, object]:
    """Return the words of a rule that depend on the mean reward."""
    solved = reward is not None and reward > 0.5
    return {"outcome": "solved" if solved else "failed", "families": "harder" if solved else "easier"}


def exactly_zero(metric: str) -> Check:
    """Check that a count is 0."""

    def check(steps: Steps) -> Iterator[Finding]:
        if steps.metrics.get(metric):
            yield Finding(steps.metrics[metric], "0")

    return check


def updated(steps: Steps) -> Iterator[Finding]:
    """Check that the step has changed the weights."""
    if steps.metrics.get("train/num_updates") == 0:
        yield Finding(0, ">= 1")


def around_one(metric: str, setting: str) -> Check:
    """Check a metric that is 1 in a healthy step against its largest difference from 1."""

    def check(steps: Steps) -> Iterator[Finding]:
        value, bias = steps.metrics.get(metric), getattr(steps.bounds, setting)
        if value is not None and not abs(value - 1.0) <= bias:
            yield Finding(value, f"1 +- {bias:g}")

    return check


def jump(metric: str, setting: str) -> Check:
    """Check a divergence below its bound against the largest earlier one of this run."""

    def check(steps: Steps) -> Iterator[Finding]:
        value, known, bound = steps.metrics.get(metric), steps.known(metric), getattr(steps.bounds, setting)
        if value is None or not bound or len(known) < steps.bounds.baseline_steps:
            return
        worst = max(known)
        if bound / SPIKE < value <= bound and value > SPIKE * worst:
            yield Finding(value, f"<= {SPIKE:g} times the earlier {worst:.3g}")

    return check


def finite(metric: str) -> Check:
    """Check that a metric is finite."""

    def check(steps: Steps) -> Iterator[Finding]:
        if not math.isfinite(steps.metrics.get(metric, 0.0)):
            yield Finding(steps.metrics[metric], "finite")

    return check


def spike(metric: str, setting: str) -> Check:
    """Check a metric against a multiple of its earlier median."""

    def check(steps: Steps) -> Iterator[Finding]:
        known = [value for value in steps.known(metric) if math.isfinite(value)]
        value, usual = steps.metrics.get(metric), statistics.median(known) if known else 0.0
        if value is None or not steps.has_baseline or not math.isfinite(value):
            return
        factor = getattr(steps.bounds, setting)
        if usual > 0 and value > factor * usual:
            yield Finding(value, f"<= {factor:g} times the median {usual:.3g}")

    return check


def factor_of_median(metric: str, setting: str) -> Check:
    """Check a metric against a multiple of its earlier median, and the median against the same multiple of it."""

    def check(steps: Steps) -> Iterator[Finding]:
        value, known, factor = steps.metrics.get(metric), steps.known(metric), getattr(steps.bounds, setting)
        if value is None or len(known) < steps.bounds.baseline_steps:
            return
        usual = statistics.median(known)
        if not usual / factor <= value <= factor * usual:
            yield Finding(value, f"within a factor {factor:g} of the median {usual:.3g}")

    return check


def recent(
    metric: str,
    comparison: Comparison,
    bound_of: Callable[[HealthConfig], float],
    mean: Callable[[Sequence[float]], float],
    name: str,
) -> Check:
    """Check the mean or median of a noisy metric over the last `baseline_steps` steps, all of which measured it."""

    def check(steps: Steps) -> Iterator[Finding]:
        last = [*steps.earlier, steps.metrics][-steps.bounds.baseline_steps :]
        found = [entry[metric] for entry in last if metric in entry]
        if metric not in steps.metrics or len(found) < steps.bounds.baseline_steps:
            return
        value, bound = mean(found), bound_of(steps.bounds)
        if not _holds(value, comparison, bound):
            threshold = f"{comparison} {bound:g} in the {name} of {len(found)} steps, got {value:.2g}"
            yield Finding(steps.metrics[metric], threshold)

    return check


def reward_drop(steps: Steps) -> Iterator[Finding]:
    """Check the mean reward of the last window of steps against the best earlier window."""
    metric, bounds = "reward/mean", steps.bounds
    if metric not in steps.metrics or not steps.has_baseline:
        return
    rewards, window = [*steps.known(metric), steps.metrics[metric]], bounds.reward_window
    if len(rewards) < 2 * window:
        return
    last = rewards[-window:]
    best = max((rewards[at : at + window] for at in range(len(rewards) - 2 * window + 1)), key=statistics.fmean)
    # The floor keeps windows of almost equal rewards from making every small change significant.
    error = math.sqrt(max(statistics.variance(last) + statistics.variance(best), _MIN_VARIANCE) / window)
    highest, limit = statistics.fmean(best), bounds.reward_drop_sigmas
    if (highest - statistics.fmean(last)) / error > limit:
        yield Finding(steps.metrics[metric], f"at most {limit:g} standard errors below the earlier {highest:.3g}")


def family_trained(steps: Steps) -> Iterator[Finding]:
    """Check each family's share of the trained groups against its share of the completed groups whose rewards were not
    equal."""
    totals = _totals(steps.metrics)
    signal = max(1.0, totals["completed"] - totals["zero_variance"])
    for family, shares in _families(steps.metrics):
        own = shares["completed"] * totals["completed"] - shares["zero_variance"] * totals["zero_variance"]
        bound, trained = steps.bounds.min_family_ratio * own / signal, shares["trained"]
        if totals["trained"] * own / signal >= MIN_FAMILY_GROUPS and trained < bound:
            yield Finding(trained, f">= {bound:.3g}", {"family": family}, f"family/{family}/trained_frac_total")


def family_stale(steps: Steps) -> Iterator[Finding]:
    """Check each family's share of the stale groups against its share of the completed ones."""
    for family, shares in _families(steps.metrics):
        # At most 1 / ratio times its own share; for a large family, the others have at least ratio times theirs.
        own, ratio = shares["completed"], steps.bounds.min_family_ratio
        bound = min(own / ratio, 1 - ratio * (1 - own)) if ratio else 1.0
        if _totals(steps.metrics)["stale"] >= MIN_FAMILY_GROUPS and shares["stale"] > bound:
            yield Finding(shares["stale"], f"<= {bound:.3g}", {"family": family}, f"family/{family}/stale_frac_total")


_KINDS = ("completed", "trained", "stale", "zero_variance")


def _totals(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {kind: metrics.get(f"groups/{kind}_total", 0) for kind in _KINDS}


def _families(metrics: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the families with their share of the groups of each kind."""
    for name in metrics:
        if name.startswith("family/") and name.endswith("/completed_frac_total"):
            family = name.removeprefix("family/").removesuffix("/completed_frac_total")
            yield family, {kind: metrics.get(f"family/{family}/{kind}_frac_total", 0.0) for kind in _KINDS}
