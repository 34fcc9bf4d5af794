"""Metrics of one training step, and the base class of listeners to the progress of a run.

`StepAccumulator` collects episodes and groups between two steps; `StepReport` is the finished step. Used by
`recipes.training_loop` and by progress listeners. A metric covers what ended since the previous step, except counts of
episodes, `time/elapsed`, `time/quota_wait` and names that end in `_total`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deskhand.recipes.health_rules import (
    ERRORED,
    LENGTH,
    NUM_EPISODES,
    NUM_GROUPS,
    NUM_REPLIES,
    REWARD,
    ZERO_VARIANCE,
    Alert,
)
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import Group
from deskhand.rollout.success_statistics import MAX_FAMILIES
from deskhand.tasks.outcome import Errored, Scored

SCHEMA_VERSION = 2
"""`schema_version` of each line of metrics.jsonl."""


@dataclass(frozen=True)
class StepReport:
    """A finished training step."""

    step: int
    total_steps: int
    version: int
    """Version of the weights after the step."""
    eta_s: float
    metrics: dict[str, Any]
    """Metrics by flat name, such as `reward/mean`; unmeasured ones are missing."""
    alerts: tuple[Alert, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the line of metrics.jsonl as JSON types."""
        head = {"schema_version": SCHEMA_VERSION, "step": self.step, "version": self.version}
        return {**head, **self.metrics, "alerts": [alert.to_dict() for alert in self.alerts]}


@dataclass
class FamilyShares:
    """Shares of the families in the groups since the process began, to see a family that is trained less often than it
    is started."""

    started: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
    trained: Counter[str] = field(default_factory=Counter)
    stale: Counter[str] = field(default_factory=Counter)
    zero_variance: Counter[str] = field(default_factory=Counter)

    def metrics(self) -> dict[str, float]:
        """Return the groups by kind, and each family's share of them, by name."""
        if len(self.started) > MAX_FAMILIES:
            return {}
        kinds = ("started", "completed", "trained", "stale", "zero_variance")
        counts: dict[str, Counter[str]] = {name: getattr(self, name) for name in kinds}
        return {f"groups/{name}_total": count.total() for name, count in counts.items()} | {
            f"family/{family}/{name}_frac_total": count[family] / max(1, count.total())
            for family in sorted(self.started)
            for name, count in counts.items()
        }


@dataclass
class StepAccumulator:
    """Episodes and groups that ended since the previous step."""

    rewards: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """Scores of the task's check; they differ from the rewards if the config names a reward function."""
    successes: list[bool] = field(default_factory=list)
    first_clicks: list[bool] = field(default_factory=list)
    num_groups: int = 0
    num_zero_variance: int = 0
    """Completed groups with equal rewards and at least two scores."""
    num_equal_episodes: int = 0
    """Scored episodes of such groups."""
    num_group_episodes: int = 0
    """Scored episodes of completed groups."""
    num_stopped_groups: int = 0
    num_stopped_episodes: int = 0
    """Episodes that were not started, because their group was stopped early."""
    num_errored: int = 0
    """Episodes without a score, except those that a stopped run canceled."""
    num_tokens: int = 0
    """Sampled tokens of scored episodes."""
    num_calls: int = 0
    num_untrained: int = 0
    """Calls of scored episodes that are stored and not trained on."""
    seconds: Counter[str] = field(default_factory=Counter)
    """Seconds of scored episodes by phase."""
    replies: Counter[str] = field(default_factory=Counter)
    """Replies of scored episodes by kind of error; "" for none."""

    def add(self, result: EpisodeResult, completed: Group | None) -> None:
        """Add an episode that ended, and the group that it completed, if any."""
        if isinstance(result.outcome, Scored):
            self.rewards.append(result.reward or 0.0)
            self.scores.append(result.score)
            self.successes.append(result.success)
            self.num_tokens += result.graph.num_sampled_tokens
            self.num_calls += len(result.graph.ids)
            self.num_untrained += len(result.graph.untrained)
            self.seconds.update(result.seconds)
            self.replies.update(step.reply_error for step in result.transcript.steps)
            if result.first_click_on_target is not None:
                self.first_clicks.append(result.first_click_on_target)
        elif isinstance(result.outcome, Errored) and result.outcome.cause != "cancelled":  # stopping a run is no outage
            self.num_errored += 1
        if completed is not None:
            self.num_groups += 1
            is_equal = completed.state == "closed" and len(completed.rewards) > 1
            self.num_zero_variance += is_equal
            self.num_equal_episodes += is_equal * len(completed.scored)
            self.num_group_episodes += len(completed.scored)
            self.num_stopped_groups += completed.num_stopped > 0
            self.num_stopped_episodes += completed.num_stopped

    @property
    def mean_reward(self) -> float | None:
        return _mean(self.rewards)

    def metrics(self) -> dict[str, float | None]:
        """Return the metrics by name; None without anything to measure."""
        replies, truncated = self.replies.total(), self.replies["truncated"]
        ended = self.num_errored + len(self.rewards)
        return {
            REWARD: self.mean_reward,
            "reward/score": _mean(self.scores),
            "reward/success_rate": _mean(self.successes),
            "reward/first_click_accuracy": _mean(self.first_clicks),
            "replies/unparsed_frac": _ratio(self.replies["format"], replies),
            "replies/rejected_frac": _ratio(self.replies["action"], replies),
            "replies/truncation_rate": _ratio(truncated, replies),
            # Truncated replies say nothing about the action format.
            "replies/parse_rate": _ratio(replies - truncated - self.replies["format"], replies - truncated),
            LENGTH: _ratio(self.num_tokens, self.num_calls),
            **{f"time/episode_{phase}": _ratio(total, len(self.rewards)) for phase, total in self.seconds.items()},
            NUM_REPLIES: replies,
            "replies/untrained_frac": _ratio(self.num_untrained, self.num_calls),
            "groups/zero_variance": self.num_zero_variance,
            NUM_GROUPS: self.num_groups,
            ZERO_VARIANCE: _ratio(self.num_zero_variance, self.num_groups),
            "groups/stopped_early": self.num_stopped_groups,
            "episodes/stopped_early": self.num_stopped_episodes,
            "episodes/zero_variance_frac": _ratio(self.num_equal_episodes, self.num_group_episodes),
            ERRORED: _ratio(self.num_errored, ended),
            NUM_EPISODES: ended,
        }


def _mean(values: list[float] | list[bool]) -> float | None:
    return float(np.mean(values)) if values else None


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


class ProgressListener:
    """Override the events to show or store. Listeners do not change results; all methods are optional."""

    def log(self, text: str) -> None:
        """A permanent line of output."""

    def status(self, text: str) -> None:
        """The current activity."""

    def step(self, report: StepReport) -> None:
        """A training step finished."""

    def episodes(self, ended: int, trained: int, zero_variance: int, errored: int) -> None:
        """Numbers of training episodes so far."""

    def evaluated(self, name: str, done: int, total: int, successes: int, errored: int) -> None:
        """Numbers of held-out episodes: scored, total, successful, and errored attempts, which are retried."""

    def demonstrations(self, done: int, total: int, successes: int, errored: int) -> None:
        """Same numbers for demonstrations, which are episodes of training tasks."""

    def quota_wait(self, text: str) -> None:
        """Summary of the episodes that wait for quota; "" if there are none."""
