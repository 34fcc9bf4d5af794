"""Judging kept end states again. Invariant: nothing is played and no outcome that was kept is changed; what cannot be judged from a
kept state is unscored, never zero.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from deskhand.errors import ConfigError
from deskhand.tasks.end_state import EndState
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Outcome, Scored
from deskhand.tasks.task import Task


@dataclass(frozen=True)
class Rescored:
    """A kept state with the value of then (None: unscored) and the outcome by the checks of now."""

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
        """What is to be told of it: the values, and every clause that fails with what was read and expected."""
        told = [
            f"{self.state.title}: {_said(self.before)} then, {_said(self.after)} now{', CHANGED' if self.changed else ''}"
        ]
        if isinstance(self.outcome, Errored):
            told.append(f"    unscored ({self.outcome.cause}): {self.outcome.message}")
        else:
            told += [
                f"    {finding.clause}: read {finding.read}"
                + (f", expected {finding.expected}" if finding.expected else "")
                for finding in self.outcome.failed
            ]
        return told


def _said(value: float | None) -> str:
    return "unscored" if value is None else f"{value:g}"


async def rescore_states(states: Iterable[EndState], task_of: Callable[[EndState], Task]) -> AsyncIterator[Rescored]:
    """Judge each state by the checks of the task that `task_of` gives for it. Raises `ConfigError` where there is no such task."""
    for state in states:
        outcome = await judge(task_of(state), state, failed=state.failed, grace_s=0.0)
        yield Rescored(state, state.value, outcome)


def original_task(state: EndState, make_task: Callable[[str, int], Task]) -> Task:
    """The task that a state was kept for, as the suites make it now. Raises `ConfigError` where they know none."""
    told = state.record["task"]
    try:
        return make_task(str(told["family"]), int(told["seed"]))
    except ConfigError as error:
        mend = "name the settings whose suite has it with --config or --set, or the task file whose checks are to be used with --task"
        raise ConfigError(f"{state.path}: {error}; {mend}") from None
