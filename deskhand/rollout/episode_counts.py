"""The books of a run. Invariant: started == in_flight + queued + trained + zero_variance + stale + errored(by cause), always.

Every episode that was ever started is in exactly one of these places. `check` compares the counters with one another and with
the episodes counted in the store, and every log line goes through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deskhand.errors import RecordError
from deskhand.tasks.outcome import Cause

CAUSES: tuple[Cause, ...] = ("infrastructure", "evaluator", "cancelled")


@dataclass
class EpisodeCounts:
    """Counts of episodes."""

    started: int = 0
    in_flight: int = 0
    queued: int = 0
    """Finished and scored; their group is open or the trainer has not taken it."""
    trained: int = 0
    zero_variance: int = 0
    """All rewards of the group were equal: nothing to learn."""
    stale: int = 0
    """Too old when the trainer came to them."""
    errored: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))

    def start(self) -> None:
        self.started += 1
        self.in_flight += 1

    def mark_scored(self) -> None:
        """An episode in flight ended with a score."""
        self.in_flight -= 1
        self.queued += 1

    def mark_errored(self, cause: str, count: int = 1) -> None:
        """Episodes in flight ended without a score."""
        self.in_flight -= count
        self.errored[cause] = self.errored.get(cause, 0) + count

    def mark_done(self, *, trained: int = 0, zero_variance: int = 0, stale: int = 0) -> None:
        """Waiting episodes came to their end."""
        self.queued -= trained + zero_variance + stale
        self.trained += trained
        self.zero_variance += zero_variance
        self.stale += stale

    def check(self, counted: Mapping[tuple[str, str | None], int] | None = None) -> None:
        """Raise `RecordError("books")` unless the books close and, when `counted` is given (`Run.count_states`), agree with it."""
        places = [self.in_flight, self.queued, self.trained, self.zero_variance, self.stale, *self.errored.values()]
        if sum(places) != self.started or min(places) < 0:
            raise RecordError("books", f"the books do not close: {self.line()}")
        if counted is not None:
            expected = {
                (state, None): getattr(self, state)
                for state in ("in_flight", "queued", "trained", "zero_variance", "stale")
            } | {("errored", cause): count for cause, count in self.errored.items()}
            wrong = {
                key: (expected.get(key, 0), counted.get(key, 0))
                for key in expected.keys() | counted.keys()
                if expected.get(key, 0) != counted.get(key, 0)
            }
            if wrong:
                raise RecordError("books", f"the books and the stored episodes differ (books, stored): {wrong}")

    @property
    def unscored_share(self) -> float:
        """Of the episodes that have ended."""
        ended = self.started - self.in_flight
        return sum(self.errored.values()) / ended if ended else 0.0

    def line(self) -> str:
        """For a log line, every place named."""
        lost = " ".join(f"{cause}={count}" for cause, count in self.errored.items())
        return (
            f"started={self.started} in_flight={self.in_flight} queued={self.queued} trained={self.trained}"
            f" zero_variance={self.zero_variance} stale={self.stale} errored({lost})"
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"errored": dict(self.errored)}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go back to what `to_dict` said."""
        vars(self).update(vars(EpisodeCounts.from_dict(data)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EpisodeCounts:
        """From `to_dict`; an empty mapping is a new ledger."""
        made = cls(**data)
        made.errored = dict.fromkeys(CAUSES, 0) | dict(made.errored)
        return made
