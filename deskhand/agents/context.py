"""Which turns a model is shown. Invariant: a window is a pure function of the number of turns, so a replay shows what the
rollout showed.

A window answers one question: of `turns` turns so far (the one being asked now included), which is the first that is shown? Calls
whose first turn is the same extend each other, and a chain of them is trained as one sequence; a new first turn is a fork.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from deskhand.errors import ConfigError


class Window(Protocol):
    """A policy over the turns of an episode."""

    def first(self, turns: int) -> int:
        """Index of the first turn shown when `turns` >= 1 turns exist."""
        ...


@dataclass(frozen=True, slots=True)
class Full:
    """Everything is shown."""

    def first(self, turns: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Sliding:
    """The last `keep` turns are shown: every call after the first `keep` is a fork."""

    keep: int = 3

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ConfigError(f"window keep={self.keep} must be at least 1")

    def first(self, turns: int) -> int:
        return max(0, turns - self.keep)


@dataclass(frozen=True, slots=True)
class GrowDrop:
    """Grow to `grow_to` turns; when one more would come, drop to the last `drop_to`: most calls extend the one before."""

    grow_to: int = 8
    drop_to: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.drop_to <= self.grow_to:
            raise ConfigError(f"window needs 1 <= drop_to <= grow_to, not drop_to={self.drop_to}, grow_to={self.grow_to}")

    def first(self, turns: int) -> int:
        over = turns - self.grow_to
        if over <= 0:
            return 0
        period = self.grow_to - self.drop_to + 1
        return -(-over // period) * period
