"""Counts of the training episodes of a run, by state.

Used by `rollout.run_writer`, which changes them together with the stored episodes.

Invariant: started == in_flight + queued + trained + zero_variance + stale + errored (over all causes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from deskhand.errors import RecordError
from deskhand.tasks.outcome import Cause

CAUSES: tuple[Cause, ...] = get_args(Cause)
_STATES = ("in_flight", "queued", "trained", "zero_variance", "stale")


@dataclass
class EpisodeCounts:
    """Number of episodes in each state."""

    started: int = 0
    in_flight: int = 0
    queued: int = 0
    """Scored; the group is still open or not yet trained."""
    trained: int = 0
    zero_variance: int = 0
    """Scored, but all rewards of the group were equal."""
    stale: int = 0
    """Scored, but too old when the trainer reached them."""
    errored: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    """Episodes without a score, by cause."""

    def start(self) -> None:
        self.started += 1
        self.in_flight += 1

    def mark_scored(self) -> None:
        """Move an episode from in flight to queued."""
        self.in_flight -= 1
        self.queued += 1

    def mark_errored(self, cause: str, count: int = 1) -> None:
        """Move episodes from in flight to errored."""
        self.in_flight -= count
        self.errored[cause] = self.errored.get(cause, 0) + count

    def mark_done(self, *, trained: int = 0, zero_variance: int = 0, stale: int = 0) -> None:
        """Move queued episodes to their final state."""
        self.queued -= trained + zero_variance + stale
        self.trained += trained
        self.zero_variance += zero_variance
        self.stale += stale

    def check(self, stored: Mapping[tuple[str, str | None], int] | None = None) -> None:
        """Check the invariant, and compare with `Run.count_states` if passed. Raises `RecordError`."""
        counts: dict[tuple[str, str | None], int] = {(state, None): getattr(self, state) for state in _STATES}
        counts |= {("errored", cause): count for cause, count in self.errored.items()}
        if sum(counts.values()) != self.started or min(counts.values()) < 0:
            raise RecordError("episode_counts", f"episode counts do not add up: {self.flat()}")
        if stored is not None:
            wrong = {
                key: (counts.get(key, 0), stored.get(key, 0))
                for key in counts.keys() | stored.keys()
                if counts.get(key, 0) != stored.get(key, 0)
            }
            if wrong:
                raise RecordError("episode_counts", f"counts differ from stored episodes (counted, stored): {wrong}")

    @property
    def ended(self) -> int:
        return self.started - self.in_flight

    @property
    def errored_fraction(self) -> float:
        """Fraction of the ended episodes without a score, except those that a stopped run canceled."""
        cancelled = self.errored["cancelled"]
        return (sum(self.errored.values()) - cancelled) / max(1, self.ended - cancelled)

    def flat(self) -> dict[str, int]:
        """Return all counts by name, as fields of metrics and log events."""
        counts = {name: getattr(self, name) for name in ("started", *_STATES)}
        return counts | {f"errored_{cause}": count for cause, count in self.errored.items()}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def restore(self, data: Mapping[str, Any]) -> None:
        """Replace all counts by those of `to_dict`."""
        vars(self).update(vars(EpisodeCounts.from_dict(data)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EpisodeCounts:
        """Return the counts of `to_dict`; all zero for an empty mapping."""
        counts = cls(**data)
        counts.errored = dict.fromkeys(CAUSES, 0) | counts.errored
        return counts
