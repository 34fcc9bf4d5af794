"""Rescore saved end states with the current checks.

Used by `deskhand rescore`; start with `rescore_states`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import cast

from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError
from deskhand.tasks.end_state import EndState
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Outcome, Scored
from deskhand.tasks.task import Task


@dataclass(frozen=True)
class Rescored:
    """A saved state with its score at the time (None: errored) and its outcome by the current checks."""

    state: EndState
    before: float | None
    outcome: Outcome

    @property
    def after(self) -> float | None:
        return self.outcome.value if isinstance(self.outcome, Scored) else None

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def lines(self) -> list[str]:
        """Return the report lines: both scores, and every clause that fails."""
        change = f"{_score_text(self.before)} -> {_score_text(self.after)}"
        lines = [f"{self.state.title}: {change}{', CHANGED' if self.changed else ''}"]
        if isinstance(self.outcome, Errored):
            lines.append(f"    errored ({self.outcome.cause}): {self.outcome.message}")
        else:
            lines += [
                f"    {finding.clause}: read {finding.read}"
                + (f", expected {finding.expected}" if finding.expected else "")
                for finding in self.outcome.failed
            ]
        return lines


def _score_text(value: float | None) -> str:
    return "errored" if value is None else f"{value:g}"


async def rescore_states(states: Iterable[EndState], task_of: Callable[[EndState], Task]) -> AsyncIterator[Rescored]:
    """Judge each state with the checks of `task_of(state)`. Raises `ConfigError` if there is no such task."""
    for state in states:
        desktop = cast(StageableDesktop, state)  # checks only read
        outcome = await judge(task_of(state), desktop, declared_infeasible=state.declared_infeasible, grace_s=0.0)
        yield Rescored(state, state.value, outcome)


def original_task(state: EndState, make_task: Callable[[str, int], Task]) -> Task:
    """Regenerate the task that a state was saved for. Raises `ConfigError` if `make_task` does not know it."""
    saved = state.record["task"]
    try:
        return make_task(str(saved["family"]), int(saved["seed"]))
    except ConfigError as error:
        raise ConfigError(
            f"{state.path}: {error}; pass the suite's config with --config, or a task file with --task"
        ) from None
