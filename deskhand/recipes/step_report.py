"""What a step did, for a live line and for the store. Invariant: a figure is of what ended since the last step, or says
otherwise."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from deskhand.recipes.health import Alert, HealthMetrics
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import Group
from deskhand.tasks.outcome import Scored


@dataclass(frozen=True)
class StepReport:
    """What a step did; for a live line, and kept as the step's metrics."""

    step: int
    steps: int
    version: int
    episodes: int
    """Training episodes that ended so far."""
    episodes_per_minute: float
    reward: float | None
    """Mean over scored episodes that ended since the last step, zero-variance groups included; None when none did."""
    score: float | None
    """Mean score by the judge; differs from `reward` if the config names a reward function."""
    success: float | None
    """Share of those."""
    first_click: float | None
    """Share of those whose first click hit the target."""
    reply_errors: dict[str, float]
    """Share of the replies since the last step that were not performed, by kind: "format", "action" and "truncated"."""
    unscored_share: float
    """Of all episodes that ended so far."""
    zero_variance_groups: int
    """Since the last step."""
    staleness: float
    """Mean number of steps between the oldest sampled token of an episode and the weights that were trained."""
    rollout_wait_s: float
    """How long the trainer waited for rollouts."""
    eta_s: float
    elapsed_s: float
    """Since the loop began, or was resumed."""
    books: dict[str, Any]
    trainer: dict[str, Any]
    """The trainer's metrics of this step."""
    vitals: HealthMetrics
    quota_wait_s: float = 0.0
    """How long episodes waited for a quota so far, summed over them; no other figure holds this time."""
    parked: list[dict[str, Any]] = field(default_factory=list)
    """What waits now, by endpoint (`ParkingLot.seen`)."""
    alarms: tuple[Alert, ...] = ()
    num_resampled: int = 0
    """Episodes trained in this step that weights sampled which a kill has undone (`rollout.lineage`)."""

    def metrics(self) -> dict[str, Any]:
        """JSON types."""
        return {
            key: value for key, value in asdict(self).items() if key not in ("steps", "eta_s") and value is not None
        }


@dataclass
class StepAccumulator:
    """What ended since the last step."""

    rewards: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)
    first_clicks: list[bool] = field(default_factory=list)
    groups: int = 0
    zero_variance_groups: int = 0
    """Those that outages left without two scores to compare are none."""
    unscored: int = 0
    replies: Counter[str] = field(default_factory=Counter)
    """Of scored episodes, by what was wrong with them; "" for nothing."""

    def add(self, result: EpisodeResult, closed: Group | None) -> None:
        """An episode ended, and the group that it closed, if it did."""
        if isinstance(result.outcome, Scored):
            self.rewards.append(result.reward or 0.0)
            self.scores.append(result.score)
            self.successes.append(result.success)
            self.replies.update(step.reply_error for step in result.transcript.steps)
            if result.first_click_on_target is not None:
                self.first_clicks.append(result.first_click_on_target)
        else:
            self.unscored += 1
        self.groups += closed is not None
        self.zero_variance_groups += closed is not None and closed.state == "closed" and len(closed.rewards) > 1

    @property
    def faults(self) -> dict[str, float]:
        """Share of the replies by kind of fault."""
        return {kind: self.replies[kind] / max(1, self.replies.total()) for kind in ("format", "action", "truncated")}

    def vitals(self, trainer: dict[str, Any], sight: float | None) -> HealthMetrics:
        """The signs of the step that ends here."""

        def share(part: int, whole: int) -> float | None:
            return part / whole if whole else None

        replies, cut = self.replies.total(), self.replies["truncated"]
        return HealthMetrics.of(
            trainer,
            parse_rate=share(replies - cut - self.replies["format"], replies - cut),
            truncation_rate=share(cut, replies),
            zero_variance_share=share(self.zero_variance_groups, self.groups),
            unscored_share=share(self.unscored, self.unscored + len(self.rewards)),
            reward=float(np.mean(self.rewards)) if self.rewards else None,
            sight=sight,
        )
