"""What a report shows. Invariant: plain data, already read from the store; nothing here knows where it came from.

Everything that a model or a guest wrote (`text`, `instruction`, `message`...) is kept as it was; the renderer escapes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Interval:
    """`successes` of `trials` with the bounds of a 95 % interval, both in [0, 1]."""

    successes: int
    trials: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        return self.successes / self.trials if self.trials else 0.0


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """Success of one version of the policy, or of another policy, on tasks that nothing was trained on unless it says otherwise."""

    label: str
    """"before", "after", or what stands between; of another policy, or with other settings, the name of its results."""
    step: int
    version: int
    overall: Interval
    families: dict[str, Interval]
    first_click: Interval | None = None
    """First clicks that landed on the target, of episodes whose task has one."""
    unscored: int = 0
    own: bool = True
    """Whether it is of a version of the run itself, as the run was begun."""
    held_out: bool = True
    """Whether its tasks are held out; demonstrations are of training tasks."""


@dataclass(frozen=True, slots=True)
class TrainStepView:
    """One row of the table of steps. Fractions are in [0, 1]; reward and success are None when no episode ended before the step."""

    step: int
    version: int
    episodes: int
    episodes_per_minute: float
    reward: float | None
    success: float | None
    unscored: float
    elapsed_s: float
    metrics: dict[str, float] = field(default_factory=dict)
    """Anything more that the trainer measured, by name."""


@dataclass(frozen=True, slots=True)
class TokenView:
    """One sampled token as text, its log-probability and the version of the weights that sampled it."""

    text: str
    logprob: float
    version: int


@dataclass(frozen=True, slots=True)
class MarkView:
    """Where on the screen an op acts, in pixels: one point, or the path of a drag."""

    kind: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class EpisodeStepView:
    """One model call: the screen that it saw, what it wrote, and what came of it."""

    frame: str
    """Name (SHA-256) of the screen, a key of `ReportView.frames`; empty when it is not kept."""
    text: str
    tokens: tuple[TokenView, ...] = ()
    marks: tuple[MarkView, ...] = ()
    error: str | None = None
    settled_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """One episode that can be replayed."""

    id: str
    phase: str
    """"before", "train" or "after"."""
    family: str
    seed: int
    instruction: str
    outcome: Literal["success", "failure", "unscored"]
    value: float | None
    cause: str
    """Why it is unscored, or how it ended ("done", "max_steps"...)."""
    reward: float | None
    terms: dict[str, float]
    """The reward term by term, and the parts of the outcome."""
    first_click_on_target: bool | None
    version_min: int
    version_max: int
    steps: tuple[EpisodeStepView, ...]
    last_frame: str = ""
    group: str = ""
    target: tuple[int, int, int, int] | None = None
    """(left, top, right, bottom) in pixels, half-open, of what the first click is for."""
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportView:
    """Everything in one report. `frames` maps the names of screens to PNG bytes."""

    title: str
    facts: dict[str, str]
    """Lines of the head: command, machine, model, duration..."""
    steps: tuple[TrainStepView, ...]
    evaluations: tuple[EvaluationView, ...]
    episodes: tuple[EpisodeView, ...]
    frames: dict[str, bytes]
    episode_counts: dict[str, int] = field(default_factory=dict)
    """The books: started, trained, zero_variance, stale, unscored by cause."""
    episodes_left_out: int = 0
    """Episodes that the run has and the report does not show."""
    updates: tuple[dict[str, float], ...] = ()
    """Of a warm start: what was measured at each reported update, by name."""
