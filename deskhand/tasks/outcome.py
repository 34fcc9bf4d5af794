"""Outcome of an episode and the dense reward.

Used by `tasks.judge` and the rollout.

Invariant: an outage is `Errored`, never a score of 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from deskhand.errors import ConfigError

MILESTONE_CAP = 0.5
MAX_TEXT = 500
"""Characters of each text of a finding."""
MAX_FINDINGS = 64
Cause = Literal["infrastructure", "evaluator", "cancelled", "already_solved", "bug", "taken_over"]
"""Why an episode has no score: an outage, an evaluator that failed, an end from outside, a start state that already
solves the task, a mistake in Deskhand's code or a plug-in's, or a person who took part (`rollout.live_episode`)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One clause of a check: what was read, what was expected, and its value in [0, 1].

    MiniWoB++ pages may report a value below 0. Texts are truncated to `MAX_TEXT` characters.
    """

    clause: str
    value: float
    read: str
    expected: str = ""

    def __post_init__(self) -> None:
        for name in ("clause", "read", "expected"):
            text = getattr(self, name)
            if len(text) > MAX_TEXT:
                object.__setattr__(self, name, f"{text[:MAX_TEXT]}... ({len(text)} characters)")


@dataclass(frozen=True, slots=True)
class Scored:
    """The end state is worth `value` in [0, 1]; `parts` has the value of each check and milestone."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)
    guest_trusted: bool = False
    """Whether a value depends on what a live guest process reported."""
    findings: tuple[Finding, ...] = field(default=(), compare=False)
    """Clauses of the check; they explain the value and do not affect equality."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.value <= 1.0:
            raise ValueError(f"outcome value must be in [0, 1], got {self.value}")

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Clauses that do not hold."""
        return tuple(finding for finding in self.findings if finding.value < 1.0)

    @property
    def success(self) -> bool:
        return self.value >= 1.0


@dataclass(frozen=True, slots=True)
class Errored:
    """The episode has no score because of `cause`; it is excluded from training and replaced."""

    cause: Cause
    message: str = ""


Outcome = Scored | Errored


def dense_reward(final: float, milestone_share: float, baseline: float = 0.0, cap: float = MILESTONE_CAP) -> float:
    """Return `max(0, (max(final, min(milestone_share, cap)) - baseline) / (1 - baseline))`, in [0, 1].

    Raises `ConfigError` if the start state already scores 1.
    """
    if baseline >= 1.0:
        raise ConfigError(f"the start state already scores {baseline:g}; change the setup or the check")
    reached = max(final, min(milestone_share, cap))
    return max(0.0, (reached - baseline) / (1.0 - baseline))
