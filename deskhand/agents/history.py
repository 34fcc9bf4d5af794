"""History policies: which turns of an episode are in the prompt, and the summary of the others.

Used by the agents. A `HistoryPolicy` returns the index of the first turn shown. Calls with the same first turn extend
each other and are trained as one sequence; a new first turn starts a fork. The endpoint enforces the token limit
(`context_length_exceeded`); `drop_older_half` then shortens the history.

Invariant: all are pure functions of the turns, so a replay builds the same prompts as the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from deskhand.errors import ConfigError

DroppedTurns = Literal["nothing", "replies", "steps"]
"""Summary of dropped turns: none, the replies, or the replies with their errors."""


def summarize_dropped(kind: DroppedTurns, replies: Sequence[str], errors: Sequence[str | None], most: int) -> list[str]:
    """Return numbered lines about dropped turns; `errors[i]` is why `replies[i]` was not performed, or None.

    Turns before the last `most` are only counted.
    """
    if kind == "nothing" or not replies:
        return []
    omitted = max(0, len(replies) - most)
    lines = [f"({omitted} earlier)"] if omitted else []
    for number, (reply, error) in enumerate(zip(replies, errors, strict=True), 1):
        if number > omitted:
            lines.append(
                f"{number}. {reply}"
                if kind == "replies" or error is None
                else f"{number}. {reply} (not performed: {error})"
            )
    return lines


def drop_older_half(first: int, turns: int) -> int | None:
    """Return the new first turn if the turns from `first` do not fit; None if only one turn is left."""
    shown = turns - first
    return first + -(-shown // 2) if shown > 1 else None


class HistoryPolicy(Protocol):
    """Selection of the turns in the prompt."""

    def start_index(self, turns: int) -> int:
        """Return the index of the first turn shown, given `turns` >= 1 turns."""
        ...


@dataclass(frozen=True, slots=True)
class FullHistory:
    """All turns."""

    def start_index(self, turns: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class SlidingHistory:
    """The last `keep` turns; every call after the first `keep` is a fork."""

    keep: int = 3

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ConfigError(f"sliding_turns: must be at least 1, got {self.keep}")

    def start_index(self, turns: int) -> int:
        return max(0, turns - self.keep)


@dataclass(frozen=True, slots=True)
class ChunkedHistory:
    """Grow to `grow_to` turns, then drop to the last `drop_to`; most calls extend the previous one."""

    grow_to: int = 8
    drop_to: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.drop_to <= self.grow_to:
            raise ConfigError(
                f"history_keep_turns: must be in [1, history_max_turns = {self.grow_to}], got {self.drop_to}"
            )

    def start_index(self, turns: int) -> int:
        over = turns - self.grow_to
        if over <= 0:
            return 0
        period = self.grow_to - self.drop_to + 1
        return -(-over // period) * period
