"""Data classes of a report.

Filled by `reporting.build_report`, rendered by `reporting.html_report`. Text of models and guests is stored unescaped;
the renderer escapes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

QUOTA_WAIT = "quota wait, s"
"""Key of the quota wait in `TrainStepView.metrics`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """`successes` of `trials` with a 95 % interval in [0, 1]."""

    successes: int
    trials: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        return self.successes / self.trials if self.trials else 0.0


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """Evaluation of one version of the policy, or of another policy."""

    label: str
    """"before", "after" or "version N"; for other policies or settings the name of the evaluation."""
    step: int
    version: int
    overall: Interval
    families: dict[str, Interval]
    first_click: Interval | None = None
    """First clicks on target, of episodes whose task has one."""
    errored: int = 0
    own: bool = True
    """Whether it evaluates a version of the run with the run's settings."""
    held_out: bool = True
    """Whether its tasks are held out; demonstrations use training tasks."""


@dataclass(frozen=True, slots=True)
class TrainStepView:
    """Row of the table of steps. Fractions are in [0, 1]; reward and success are None if no episode ended."""

    step: int
    version: int
    episodes: int
    episodes_per_minute: float
    reward: float | None
    success: float | None
    errored: float
    elapsed_s: float
    metrics: dict[str, float] = field(default_factory=dict)
    """Additional metrics by heading."""


@dataclass(frozen=True, slots=True)
class TokenView:
    """A sampled token with its log-probability and the version of the weights."""

    text: str
    logprob: float
    version: int


@dataclass(frozen=True, slots=True)
class MarkView:
    """Where an op acts in pixels: one point, or the path of a drag."""

    kind: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class EpisodeStepView:
    """A model call: screenshot, reply and result."""

    frame: str
    """SHA-256 of the screenshot, a key of `ReportView.frames`; empty if it is not stored."""
    text: str
    tokens: tuple[TokenView, ...] = ()
    marks: tuple[MarkView, ...] = ()
    error: str | None = None
    settled_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """An episode to replay."""

    id: str
    phase: str
    """"before", "train" or "after"."""
    family: str
    seed: int
    instruction: str
    outcome: Literal["success", "failure", "errored"]
    value: float | None
    cause: str
    """Why it errored, or its stop reason ("done", "max_steps"...)."""
    reward: float | None
    terms: dict[str, float]
    """Terms of the reward and parts of the score."""
    first_click_on_target: bool | None
    version_min: int
    version_max: int
    steps: tuple[EpisodeStepView, ...]
    last_frame: str = ""
    group: str = ""
    target: tuple[int, int, int, int] | None = None
    """(left, top, right, bottom) of the first-click target in pixels, half-open."""
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportView:
    """A report. `frames` maps SHA-256 hashes of screenshots to PNG bytes."""

    title: str
    facts: dict[str, str]
    """Facts of the run: command, machine, model, duration..."""
    steps: tuple[TrainStepView, ...]
    evaluations: tuple[EvaluationView, ...]
    episodes: tuple[EpisodeView, ...]
    frames: dict[str, bytes]
    episode_counts: dict[str, int] = field(default_factory=dict)
    """Episodes by state, errored ones by cause."""
    num_hidden_episodes: int = 0
    """Stored episodes that the report does not show."""
    updates: tuple[dict[str, float], ...] = ()
    """Metrics of each logged update of supervised training."""
