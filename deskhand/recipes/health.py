"""Whether a run is well. Invariant: an alarm says what was measured, the bound, the likely cause and what to do about it.

Vital signs are in every step's record. Alarms are judged on one step, except where a sign means something only beside earlier
steps, and on the groups since the last step where none of them lets a step be taken.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deskhand.config.loop import HealthConfig


@dataclass(frozen=True, slots=True)
class HealthMetrics:
    """Signs of one step; None where nothing was there to measure."""

    parse_rate: float | None
    """Share of the replies since the last step that the dialect understood; cut ones do not count."""
    truncation_rate: float | None
    """Share of those replies that were cut at the limit of tokens."""
    zero_variance_share: float | None
    """Share of the groups that closed since the last step whose rewards were all equal."""
    unscored_share: float | None
    """Share of the episodes that ended since the last step without a score."""
    reward: float | None
    mismatch_kl_text: float | None
    """Between engine and trainer under the same weights, nats per token, where no picture precedes the token."""
    mismatch_kl_images: float | None
    """The same where one does."""
    ratio_max: float
    clip_fraction: float
    dropped_fraction: float
    gradient_norm: float
    entropy: float
    rejected: int
    """Episodes whose rows contradicted themselves."""
    tokens: int
    explained_variance: float | None = None
    sight: float | None = None
    """What swapped pictures change, nats; None at steps without a canary."""

    @classmethod
    def of(cls, trainer: dict[str, Any], **signs: float | None) -> HealthMetrics:
        """From a trainer's metrics as a dictionary, and the signs of the rollouts."""
        names = (
            "mismatch_kl_text",
            "mismatch_kl_images",
            "ratio_max",
            "clip_fraction",
            "dropped_fraction",
            "gradient_norm",
        )
        own = {name: trainer[name] for name in (*names, "entropy", "tokens", "explained_variance")}
        return cls(**signs, **own, rejected=sum(trainer["rejected"].values()))  # pyright: ignore[reportArgumentType]

    @classmethod
    def recorded(cls, record: dict[str, Any]) -> HealthMetrics | None:
        """Those in a step's record; None when it holds none, or those of another version."""
        try:
            return cls(**record["vitals"])
        except (KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Alert:
    """`sign`: the vital sign's name."""

    metric: str
    value: float
    threshold: str
    cause: str
    hint: str

    def line(self) -> str:
        return f"{self.metric} is {self.value:.3g} (bound: {self.threshold}): {self.cause}; {self.hint}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_alerts(now: HealthMetrics, earlier: Sequence[HealthMetrics], bounds: HealthConfig) -> list[Alert]:
    """What is wrong at this step. `earlier`: the steps before, oldest first."""
    found: list[Alert] = []

    def low(sign: str, bound: float, cause: str, mend: str) -> None:
        value = getattr(now, sign)
        if value is not None and value < bound:
            found.append(Alert(sign, value, f">= {bound:g}", cause, mend))

    def high(sign: str, bound: float, cause: str, mend: str) -> None:
        value = getattr(now, sign)
        if value is not None and value > bound:
            found.append(Alert(sign, value, f"<= {bound:g}", cause, mend))

    low(
        "parse_rate",
        bounds.min_parse_rate,
        "the model does not speak the agent's dialect, or has forgotten it",
        "check agent.action_format, set agent.prompt_style to full, warm the model up by imitation, or lower trainer.learning_rate",
    )
    high(
        "truncation_rate",
        bounds.max_truncation_rate,
        "replies are longer than their limit",
        "raise agent.max_new_tokens",
    )
    high("zero_variance_share", bounds.max_zero_variance_fraction, *_equal_rewards(now.reward))
    high(
        "unscored_share",
        bounds.max_error_fraction,
        "desktops, engine or judges fail",
        "the lines episode.unscored of log.jsonl say why; deskhand doctor says what this machine lacks",
    )
    high(
        "mismatch_kl_text",
        bounds.max_engine_kl_text,
        "engine and trainer disagree under the same weights",
        "give both one dtype; python -m benchmarks.exactness measures it",
    )
    high(
        "mismatch_kl_images",
        bounds.max_engine_kl_images,
        "engine and trainer disagree under the same weights once they have seen a picture",
        "give both one dtype and one preprocessing; python -m benchmarks.exactness measures it",
    )
    high(
        "dropped_fraction",
        bounds.max_masked_fraction,
        "what is trained is far from what the weights would sample now",
        "lower loop.max_staleness or trainer.learning_rate",
    )
    high(
        "clip_fraction",
        bounds.max_clip_fraction,
        "a step moves the policy out of its trust region",
        "lower trainer.learning_rate, trainer.ppo_epochs or trainer.num_minibatches",
    )
    high(
        "ratio_max",
        bounds.max_ratio,
        "some token is that many times likelier than where the trust region has its centre",
        "lower trainer.learning_rate, trainer.ppo_epochs or trainer.num_minibatches; trainer.dual_clip bounds what such a token can cost",
    )
    high(
        "rejected",
        0,
        "recorded rows contradict themselves or their images",
        "the causes are in the step's record; such episodes are not trained, please report them",
    )
    if now.tokens:
        low(
            "entropy",
            bounds.min_entropy,
            "the policy hardly varies its replies, so groups will teach nothing",
            "lower trainer.learning_rate, raise trainer.clip_ratio_high, or add trainer.kl_loss_coef",
        )
        found += _against_earlier(now, [vitals for vitals in earlier if vitals.tokens], bounds)
    low(
        "sight",
        bounds.min_image_sensitivity,
        "swapped screenshots change nothing: the model does not look at them",
        "check that the engine gets the pictures; python -m benchmarks.image_sensitivity measures it",
    )
    return found


def no_signal_alert(equal: int, closed: int, reward: float | None, bounds: HealthConfig) -> Alert | None:
    """The alarm of a run that takes no step: `equal` of the `closed` groups since the last one had equal rewards. Judged at every
    `bounds.barren_groups` groups; None when all is well."""
    if not closed or closed % bounds.no_signal_groups or equal / closed <= bounds.max_zero_variance_fraction:
        return None
    return Alert(
        "zero_variance_share", equal / closed, f"<= {bounds.max_zero_variance_fraction:g}", *_equal_rewards(reward)
    )


def solved_at_start_alert(family: str) -> Alert:
    """The alarm of a task that an episode solved in which nothing was done: members of its groups are paid for nothing."""
    return Alert(
        "unearned",
        1.0,
        "0",
        f"{family} was solved by an episode in which nothing was done: its start state scores 1 already",
        f"stage it so that it does not, or leave it out (suite.exclude: [{family}]); a machine that nothing brings back "
        "(desktop.skip_reset) may also still be as an earlier episode left it",
    )


def all_errored_alert(family: str, episodes: int, why: str) -> Alert:
    """The alarm of a group that closed without any score, so that no step can come of it."""
    return Alert(
        "unscored_share",
        1.0,
        "some score",
        f"all {episodes} episodes of a group of {family} were left without a score; the last: {why}",
        f"mend what it says, or leave the task out (suite.exclude: [{family}])",
    )


def _equal_rewards(reward: float | None) -> tuple[str, str]:
    """Cause and mend, by the mean reward."""
    solved = reward is not None and reward > 0.5
    return (
        f"most tasks are {'solved' if solved else 'missed'} by every member of their group",
        f"take {'harder' if solved else 'easier'} families, or raise loop.group_size",
    )


def _against_earlier(now: HealthMetrics, earlier: Sequence[HealthMetrics], bounds: HealthConfig) -> list[Alert]:
    """Signs that mean something only beside those of earlier steps."""
    found: list[Alert] = []
    if not math.isfinite(now.gradient_norm):
        found.append(
            Alert(
                "gradient_norm",
                now.gradient_norm,
                "finite",
                "a gradient overflowed; the update was left out",
                "lower trainer.learning_rate, or use bfloat16 in place of float16",
            )
        )
    if len(earlier) < bounds.baseline_steps:
        return found
    norms = [vitals.gradient_norm for vitals in earlier if math.isfinite(vitals.gradient_norm)]
    usual = statistics.median(norms) if norms else 0.0
    if math.isfinite(now.gradient_norm) and usual > 0 and now.gradient_norm > bounds.grad_norm_spike_factor * usual:
        found.append(
            Alert(
                "gradient_norm",
                now.gradient_norm,
                f"<= {bounds.grad_norm_spike_factor:g} times the usual {usual:.3g}",
                "a few tokens dominate the step",
                "lower trainer.importance_weight_cap, or set trainer.dual_clip",
            )
        )
    usual = statistics.median(vitals.entropy for vitals in earlier)
    if now.entropy > bounds.entropy_spike_factor * usual:
        found.append(
            Alert(
                "entropy",
                now.entropy,
                f"<= {bounds.entropy_spike_factor:g} times the usual {usual:.3g}",
                "the policy falls apart",
                "resume an earlier checkpoint with a lower trainer.learning_rate",
            )
        )
    if now.explained_variance is not None and now.explained_variance < 0:
        found.append(
            Alert(
                "explained_variance",
                now.explained_variance,
                ">= 0",
                "the critic predicts worse than a constant",
                "raise trainer.critic.learning_rate, or give it a trunk of its own (trainer.critic.backbone)",
            )
        )
    return found
