"""What a judge says of an episode, and the reward that follows. Invariant: an outage is never a zero.

Reward from dense milestones (DESIGN, section 3): `max(0, (max(final, m) - b) / (1 - b))`, with `m` the weighted share of
milestones reached at any time in the episode, capped at `MILESTONE_CAP`, and `b` what the untouched start state scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from deskhand.errors import ConfigError

MILESTONE_CAP = 0.5
Cause = Literal["infrastructure", "evaluator", "cancelled"]


MAX_TEXT = 500
MAX_FINDINGS = 64


@dataclass(frozen=True, slots=True)
class Finding:
    """One clause of a check: what was read of the end state, what was expected, and what that is worth in [0, 1] (the page's own
    reward of MiniWoB++ may be below 0). Texts are cut to `LONGEST_TEXT` characters."""

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
    """The end state is worth `value` in [0, 1]; `parts` explains it, check by check and milestone by milestone."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)
    guest_trusted: bool = False
    """True when some check could only be read from a live process of the guest."""
    findings: tuple[Finding, ...] = field(default=(), compare=False)
    """What was read, what was expected, clause by clause; it explains the value and is no part of it."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.value <= 1.0:
            raise ValueError(f"outcome value {self.value} is outside [0, 1]")

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The clauses that do not hold."""
        return tuple(finding for finding in self.findings if finding.value < 1.0)

    @property
    def success(self) -> bool:
        return self.value >= 1.0


@dataclass(frozen=True, slots=True)
class Errored:
    """The episode has no value, because of `cause`; it is masked from training and refilled."""

    cause: Cause
    message: str = ""


Outcome = Scored | Errored


def dense_reward(final: float, milestone_share: float, baseline: float = 0.0, cap: float = MILESTONE_CAP) -> float:
    """The dense-milestone reward in [0, 1]; raises `ConfigError` when the start state already scores 1 (`baseline` >= 1)."""
    if baseline >= 1.0:
        raise ConfigError(f"the start state already scores {baseline:g}; a task must not be solved by doing nothing")
    reached = max(final, min(milestone_share, cap))
    return max(0.0, (reached - baseline) / (1.0 - baseline))
