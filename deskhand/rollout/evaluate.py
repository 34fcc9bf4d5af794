"""Evaluation on held-out seeds. Invariant: each (family, seed) is judged once; an unscored episode is tried again and otherwise
left out of the denominator and reported, never counted as a failure.

Results are episodes of the run under the evaluation's name, so an evaluation that was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deskhand.errors import ConfigError
from deskhand.rollout.groups import Ticket
from deskhand.rollout.journal import new_row, row_of
from deskhand.rollout.record import EpisodeResult, to_record
from deskhand.rollout.scheduler import Scheduler
from deskhand.store.run import TRAIN, EpisodeRow, Run
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import Task

Z_95 = 1.959963984540054
ATTEMPTS = 3


class RunsEpisodes(Protocol):
    """What plays a ticket (`rollout.runner.Runner`)."""

    async def run(self, ticket: Ticket) -> EpisodeResult: ...


@dataclass(frozen=True)
class Rate:
    """`hits` of `total` with the Wilson 95 % interval (Wilson, JASA 22, 1927)."""

    hits: int
    total: int

    @property
    def value(self) -> float:
        return self.hits / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """(0, 1) when nothing was counted."""
        return wilson(self.hits, self.total)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:6.1%} [{low:.1%}, {high:.1%}] of {self.total}"


def wilson(hits: int, total: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson score interval of a proportion."""
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, z * z
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = z * math.sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Report:
    """What an evaluation found."""

    name: str
    success: Rate
    by_family: dict[str, Rate]
    first_click: Rate
    """Over scored episodes whose task has a target."""
    reward: float
    """Mean over scored episodes."""
    unscored: dict[str, int] = field(default_factory=dict)
    """Tasks that have no score after all attempts, by cause of the last."""


def report_of(run: Run, name: str) -> Report:
    """Read an evaluation's results, complete or not."""
    scored = run.episodes(name, "scored")
    clicks = [row.first_click for row in scored if row.first_click is not None]
    families = sorted({row.family for row in scored})
    done = {row.task_id for row in scored}
    lost = {row.task_id: row.cause or "" for row in run.episodes(name, "unscored") if row.task_id not in done}
    return Report(
        name,
        _rate(scored),
        {family: _rate([row for row in scored if row.family == family]) for family in families},
        Rate(sum(clicks), len(clicks)),
        sum(row.reward or 0.0 for row in scored) / len(scored) if scored else math.nan,
        dict(Counter(lost.values())),
    )


def _rate(rows: Sequence[EpisodeRow]) -> Rate:
    return Rate(sum((row.value or 0.0) >= 1.0 for row in rows), len(rows))


class _EvaluationSource:
    """Each task once, unscored ones again at the end."""

    def __init__(self, run: Run, name: str, tasks: Sequence[Task], ended: Callable[[EpisodeResult], None] | None) -> None:
        self._run, self._name, self._ended = run, name, ended
        done = {row.task_id for row in run.episodes(name, "scored")}
        self._left = [task for task in reversed(tasks) if task.id not in done]
        self._attempts: Counter[str] = Counter()
        self._tasks = {task.id: task for task in tasks}
        self._in_flight = 0
        self._writing = asyncio.Lock()

    @property
    def exhausted(self) -> bool:
        return not self._left and not self._in_flight

    async def next(self) -> Ticket | None:
        if not self._left:
            return None
        ticket = Ticket(uuid.uuid4().hex, self._left.pop())
        self._in_flight += 1
        self._attempts[ticket.task.id] += 1
        await self._write(lambda: self._run.start_episode(new_row(ticket, self._name)))
        return ticket

    async def finished(self, result: EpisodeResult) -> None:
        scored = isinstance(result.outcome, Scored)
        row = row_of(result, self._name, "scored" if scored else "unscored")

        def write() -> None:
            record, tensors = to_record(result)
            self._run.finish_episode(row, record, tensors)

        await self._write(write)
        self._in_flight -= 1
        if not scored and self._attempts[result.task_id] < ATTEMPTS:
            self._left.insert(0, self._tasks[result.task_id])
        if self._ended is not None:
            self._ended(result)

    async def _write(self, write: Callable[[], None]) -> None:
        async with self._writing:
            await asyncio.to_thread(write)


async def evaluate(
    run: Run,
    name: str,
    tasks: Sequence[Task],
    runner: RunsEpisodes,
    concurrency: int,
    *,
    ended: Callable[[EpisodeResult], None] | None = None,
) -> Report:
    """Run every task that has no score under `name` yet, `concurrency` at a time; `ended` is told of each result.

    Raises `ConfigError` for a reserved name or a task twice, `InfrastructureError` when nothing but outages happens.
    """
    if name == TRAIN or not name:
        raise ConfigError(f"an evaluation cannot be named {name!r}; choose another name")
    if len({task.id for task in tasks}) != len(tasks):
        raise ConfigError(f"evaluation {name!r} holds a task twice")
    await asyncio.to_thread(run.abandon_in_flight, None, name)
    source = _EvaluationSource(run, name, tasks, ended)
    scheduler = Scheduler(source, runner.run, concurrency)
    await scheduler.run()
    return await asyncio.to_thread(report_of, run, name)
