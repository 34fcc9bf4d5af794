"""The rules of the health alerts of a training run, by name, with likely cause and fix.

Used by `recipes.health` and by row 32 of `benchmarks.faults`, which raises every rule by a fault. The table in
docs/training.md is compared with `RULES` by a test. How a rule judges a step is in `recipes.health_checks`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deskhand.recipes import health_checks as checks

ZERO_VARIANCE, ERRORED, SOLVED_AT_START = "groups/zero_variance_frac", "episodes/errored_frac", "tasks/solved_at_start"
IMAGE_SENSITIVITY, ENTROPY, GRAD_NORM = "policy/image_sensitivity", "train/entropy", "train/grad_norm"
PUBLISH_KL, STALE, LENGTH, REWARD = "policy/publish_kl", "episodes/stale_frac", "replies/mean_tokens", "reward/mean"
NUM_GROUPS, NUM_EPISODES, NUM_REPLIES = "groups/completed", "episodes/completed", "replies/completed"


@dataclass(frozen=True, slots=True)
class Alert:
    """A metric beyond its threshold. `rule` is the name of a `Rule`."""

    metric: str
    value: float
    threshold: str
    cause: str
    hint: str
    rule: str = ""

    def line(self) -> str:
        return f"{self.metric} is {self.value:.3g} (threshold: {self.threshold}): {self.cause}; {self.hint}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Rule:
    """When an alert is raised. `cause` and `hint` may contain the names of the facts of a finding in braces."""

    name: str
    metric: str
    raised: str
    """When it is raised, for the docs; settings of `loop.health` are in code spans."""
    cause: str
    hint: str
    check: checks.Check | None = None
    """None for rules about single episodes and groups, which are judged between steps."""
    needs_training: bool = True
    """Whether only steps that trained a token are judged and compared."""

    def alert(self, finding: checks.Finding) -> Alert:
        facts: Mapping[str, object] = finding.facts
        return Alert(
            finding.metric or self.metric,
            finding.value,
            finding.threshold,
            self.cause.format_map(facts),
            self.hint.format_map(facts),
            self.name,
        )


_NO_SIGNAL = "most tasks are {outcome} by every episode of their group"
_MEASURE = "in a checkout, python -m benchmarks.exactness measures it"
_LOWER = "lower trainer.learning_rate, trainer.ppo_epochs or trainer.num_minibatches"

_ROLLOUTS = (
    Rule(
        "parse_rate", "replies/parse_rate", f"below `min_parse_rate`, of the last {checks.MIN_REPLIES} replies or more",
        "the model does not follow the agent's action format",
        "check agent.action_format, set agent.prompt_style to full, fine-tune first with deskhand sft, "
        "or lower trainer.learning_rate",
        checks.pooled("replies/parse_rate", NUM_REPLIES, lambda _: checks.MIN_REPLIES, ">=", "min_parse_rate"),
        needs_training=False,
    ),
    Rule(
        "truncation", "replies/truncation_rate",
        f"above `max_truncation_rate`, of the last {checks.MIN_REPLIES} replies or more",
        "replies exceed the token limit", "raise agent.max_new_tokens",
        checks.pooled(
            "replies/truncation_rate", NUM_REPLIES, lambda _: checks.MIN_REPLIES, "<=", "max_truncation_rate"
        ),
        needs_training=False,
    ),
    Rule(
        "length", LENGTH, "another than the median of the run by a factor of `length_change_factor`",
        "replies have become much longer or shorter",
        "check agent.max_new_tokens and the loss normalization of trainer.algorithm",
        checks.factor_of_median(LENGTH, "length_change_factor"),
    ),
    Rule(
        "reward_drop", REWARD,
        "the last `reward_window` steps are `reward_drop_sigmas` standard errors below the best earlier ones",
        "training makes the policy worse",
        "go back to an earlier checkpoint with a lower trainer.learning_rate; check the reward and the algorithm",
        checks.reward_drop,
    ),
    Rule(
        "zero_variance", ZERO_VARIANCE,
        "above `max_zero_variance_fraction`, of the last `no_signal_groups` groups or more",
        _NO_SIGNAL, "choose {families} families, or raise loop.group_size",
        checks.pooled(
            ZERO_VARIANCE, NUM_GROUPS, lambda bounds: bounds.no_signal_groups, "<=", "max_zero_variance_fraction"
        ),
        needs_training=False,
    ),
    Rule(
        "no_signal", ZERO_VARIANCE, "the same, of `no_signal_groups` groups without a step between them",
        _NO_SIGNAL, "choose {families} families, or raise loop.group_size",
    ),
    Rule(
        "errored", ERRORED, f"above `max_error_fraction`, of the last {checks.MIN_EPISODES} episodes or more",
        "desktops, engine or evaluators fail", "see the episode.errored events in log.jsonl, and run deskhand doctor",
        checks.pooled(ERRORED, NUM_EPISODES, lambda _: checks.MIN_EPISODES, "<=", "max_error_fraction"),
        needs_training=False,
    ),
    Rule(
        "group_errored", ERRORED, "every episode of a group, once per family",
        "{family}: all {episodes} episodes of a group errored; last error: {message}",
        "fix the error, or exclude the task (suite.exclude: [{family}])",
    ),
    Rule(
        "solved_at_start", SOLVED_AT_START, "an episode without any action scored 1, once per family",
        "{family}: a no-op episode scored 1: the start state already satisfies the check",
        "change its setup, or exclude it (suite.exclude: [{family}]); with desktop.skip_reset an earlier episode may "
        "have left this state",
    ),
    Rule(
        "stale", STALE, "above `max_stale_fraction` in the mean of `baseline_steps` steps",
        "episodes end too late to be trained",
        "raise loop.max_staleness or loop.groups_per_step, or lower loop.max_concurrent_episodes",
        checks.recent(STALE, "<=", lambda bounds: bounds.max_stale_fraction, statistics.fmean, "mean"),
    ),
    Rule(
        "family_trained", "family/NAME/trained_frac_total",
        "below `min_family_ratio` times the family's share of the completed groups with signal",
        "{family} is trained less often than it is started: its episodes are stale or errored",
        "raise loop.max_staleness, fix its errors, or exclude it (suite.exclude: [{family}])",
        checks.family_trained,
    ),
    Rule(
        "family_stale", "family/NAME/stale_frac_total",
        "the family's share of the completed groups is below `min_family_ratio` times this share of the stale ones",
        "{family} is stale more often than other families: its episodes take longer",
        "raise loop.max_staleness or loop.groups_per_step, or lower the steps of its tasks",
        checks.family_stale,
    ),
)  # fmt: skip
_ENGINE = (
    Rule(
        "engine_kl_text", "train/engine_kl_text", "above `max_engine_kl_text`",
        "engine and trainer disagree with the same weights", f"use one dtype for both; {_MEASURE}",
        checks.bounded("train/engine_kl_text", "<=", "max_engine_kl_text"),
    ),
    Rule(
        "engine_kl_images", "train/engine_kl_images", "above `max_engine_kl_images`",
        "engine and trainer disagree with the same weights on tokens after an image",
        f"use one dtype and one image preprocessing for both; {_MEASURE}",
        checks.bounded("train/engine_kl_images", "<=", "max_engine_kl_images"),
    ),
    *(
        Rule(
            f"engine_kl_{context}_jump", f"train/engine_kl_{context}",
            f"{checks.SPIKE:g} times the largest earlier one, and above a hundredth of `max_engine_kl_{context}`",
            "engine and trainer have begun to disagree",
            f"compare the engine's log of the last weight update; {_MEASURE}",
            checks.jump(f"train/engine_kl_{context}", f"max_engine_kl_{context}"),
        )
        for context in ("text", "images")
    ),
    Rule(
        "publish_kl", PUBLISH_KL, "above `max_engine_kl_images`",
        "the engine does not sample from the weights that it was just sent",
        f"compare the engine's weights or adapter with the checkpoint; {_MEASURE}",
        checks.bounded(PUBLISH_KL, "<=", "max_engine_kl_images"),
    ),
    Rule(
        "image_sensitivity", IMAGE_SENSITIVITY, "below `min_image_sensitivity`",
        "swapped screenshots change nothing: the policy ignores its images",
        "check that the engine receives images; in a checkout, python -m benchmarks.image_sensitivity measures it",
        checks.bounded(IMAGE_SENSITIVITY, ">=", "min_image_sensitivity"),
    ),
)  # fmt: skip
_TRAINER = (
    Rule(
        "rejected", "train/num_rejected", "not 0", "recorded sequences are inconsistent with their images or tokens",
        "they are not trained; please report the causes in train/rejected/*", checks.exactly_zero("train/num_rejected"),
        needs_training=False,
    ),
    Rule(
        "approx_kl", "train/approx_kl", "above `max_approx_kl`",
        "the policy is far from the weights that sampled the episodes",
        "lower loop.max_staleness or trainer.learning_rate",
        checks.bounded("train/approx_kl", "<=", "max_approx_kl"),
    ),
    Rule(
        "importance_weight", "train/importance_weight_mean", "differs from 1 by `max_importance_weight_bias`",
        "recorded log-probs are not those of the policy that sampled, or samples are far off-policy",
        "lower loop.max_staleness; in a checkout, python -m benchmarks.exactness compares engine and trainer",
        checks.around_one("train/importance_weight_mean", "max_importance_weight_bias"),
    ),
    Rule(
        "masked", "train/masked_frac", "above `max_masked_fraction`", "the trained samples are far off-policy",
        "lower loop.max_staleness or trainer.learning_rate",
        checks.bounded("train/masked_frac", "<=", "max_masked_fraction"),
    ),
    Rule(
        "replay_masked", "train/replay_masked_frac", "above `max_replay_masked_fraction`",
        "the replayed samples are far off-policy", "lower loop.max_replay_staleness or trainer.learning_rate",
        checks.bounded("train/replay_masked_frac", "<=", "max_replay_masked_fraction"),
    ),
    Rule(
        "clip_fraction", "train/clip_frac", "above `max_clip_fraction`",
        "a step moves the policy out of its trust region", _LOWER,
        checks.bounded("train/clip_frac", "<=", "max_clip_fraction"),
    ),
    Rule(
        "ratio", "train/ratio_max", "above `max_ratio`", "a token has become much more likely within one step",
        f"{_LOWER}, or set trainer.dual_clip", checks.bounded("train/ratio_max", "<=", "max_ratio"),
    ),
    Rule(
        "entropy_low", ENTROPY, "below `min_entropy`", "replies hardly vary, so groups will have no signal",
        "lower trainer.learning_rate, raise trainer.clip_ratio_high, or set trainer.kl_loss_coef",
        checks.bounded(ENTROPY, ">=", "min_entropy"),
    ),
    Rule(
        "entropy_spike", ENTROPY, "above `entropy_spike_factor` times the median of the run",
        "the policy is collapsing into random replies",
        "resume from an earlier checkpoint with a lower trainer.learning_rate",
        checks.spike(ENTROPY, "entropy_spike_factor"),
    ),
    Rule(
        "gradient_overflow", GRAD_NORM, "not finite", "a gradient overflowed; the update was skipped",
        "lower trainer.learning_rate, or use bfloat16 instead of float16", checks.finite(GRAD_NORM),
    ),
    Rule(
        "gradient_spike", GRAD_NORM, "above `grad_norm_spike_factor` times the median of the run",
        "a few tokens dominate the step", "lower trainer.importance_weight_cap, or set trainer.dual_clip",
        checks.spike(GRAD_NORM, "grad_norm_spike_factor"),
    ),
    Rule(
        "no_update", "train/num_updates", "0", "no update was made: the gradient is zero or not finite",
        "check trainer.algorithm and the rewards", checks.updated, needs_training=False,
    ),
    Rule(
        "critic", "train/explained_variance",
        f"below {-checks.CRITIC_NOISE:g} in the median of `baseline_steps` steps",
        "the critic predicts worse than a constant",
        "raise trainer.critic.learning_rate, or set trainer.critic.backbone to separate",
        checks.recent("train/explained_variance", ">=", lambda _: -checks.CRITIC_NOISE, statistics.median, "median"),
    ),
)  # fmt: skip
RULES: Mapping[str, Rule] = {rule.name: rule for rule in (*_ROLLOUTS, *_ENGINE, *_TRAINER)}
"""All rules, by name."""
