"""Which turns a model is shown, and what it is told of the others. Invariant: both are pure functions of the turns, so a replay
shows what the rollout showed.

A window answers one question: of `turns` turns so far (the one being asked now included), which is the first that is shown? Calls
whose first turn is the same extend each other, and a chain of them is trained as one sequence; a new first turn is a fork.
`summary` says in text what the turns before it were.

The budget of tokens is the endpoint's: it counts before it samples, and refuses what does not fit (`context_length_exceeded`).
`fewer` says which turns are shown then, where the agent may drop some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from deskhand.errors import ConfigError

DroppedTurns = Literal["nothing", "replies", "steps"]
"""What the model is told of turns that are not shown: nothing, the replies, or the replies and why some were not performed."""


def summarize_dropped(kind: DroppedTurns, replies: Sequence[str], errors: Sequence[str | None], most: int) -> list[str]:
    """Numbered lines about the turns that are not shown: `replies[i]` was not performed for the reason `errors[i]`, or was (None).

    Of more than `most` turns the oldest are only counted.
    """
    if kind == "nothing" or not replies:
        return []
    left_out = max(0, len(replies) - most)
    lines = [f"({left_out} earlier)"] if left_out else []
    for number, (reply, error) in enumerate(zip(replies, errors, strict=True), 1):
        if number > left_out:
            lines.append(
                f"{number}. {reply}"
                if kind == "replies" or error is None
                else f"{number}. {reply} (not performed: {error})"
            )
    return lines


def drop_older_half(first: int, turns: int) -> int | None:
    """The first turn to show when the turns from `first` on do not fit: the later half of them stays. None: one turn is left."""
    shown = turns - first
    return first + -(-shown // 2) if shown > 1 else None


class HistoryPolicy(Protocol):
    """A policy over the turns of an episode."""

    def start_index(self, turns: int) -> int:
        """Index of the first turn shown when `turns` >= 1 turns exist."""
        ...


@dataclass(frozen=True, slots=True)
class FullHistory:
    """Everything is shown."""

    def start_index(self, turns: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class SlidingHistory:
    """The last `keep` turns are shown: every call after the first `keep` is a fork."""

    keep: int = 3

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ConfigError(f"window keep={self.keep} must be at least 1")

    def start_index(self, turns: int) -> int:
        return max(0, turns - self.keep)


@dataclass(frozen=True, slots=True)
class ChunkedHistory:
    """Grow to `grow_to` turns; when one more would come, drop to the last `drop_to`: most calls extend the one before."""

    grow_to: int = 8
    drop_to: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.drop_to <= self.grow_to:
            raise ConfigError(
                f"window needs 1 <= drop_to <= grow_to, not drop_to={self.drop_to}, grow_to={self.grow_to}"
            )

    def start_index(self, turns: int) -> int:
        over = turns - self.grow_to
        if over <= 0:
            return 0
        period = self.grow_to - self.drop_to + 1
        return -(-over // period) * period
