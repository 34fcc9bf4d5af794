"""Which turns of an episode are in the prompt, and the summary of the others.

Used by the agents. A `HistoryWindow` returns the index of the first turn shown. Calls with the same first turn extend
each other and are trained as one sequence; a new first turn starts a fork. The endpoint enforces the token limit
(`context_length_exceeded`); `drop_older_half` then shortens the history.

Invariant: all are pure functions of the turns, so a replay builds the same prompts as the rollout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deskhand.config.schema import AgentConfig
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


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """Grow to `max_turns`, then drop to the last `keep_turns`; most calls extend the previous one.

    With equal numbers the window slides: every call after the first `max_turns` is a fork.
    """

    max_turns: int = 8
    keep_turns: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.keep_turns <= self.max_turns:
            raise ConfigError(
                f"agent.history_keep_turns: must be in [1, agent.history_max_turns = {self.max_turns}], "
                f"got {self.keep_turns}"
            )

    def start_index(self, turns: int) -> int:
        """Return the index of the first turn shown, given `turns` >= 1 turns."""
        over, period = max(0, turns - self.max_turns), self.max_turns - self.keep_turns + 1
        return -(-over // period) * period


def build_history(agent: AgentConfig) -> HistoryWindow:
    chunked, sliding = (agent.history_max_turns, agent.history_keep_turns), (agent.sliding_turns,) * 2
    return HistoryWindow(*{"full": (sys.maxsize, 1), "sliding": sliding, "chunked": chunked}[agent.history])
