"""Evaluation on held-out seeds. Invariant: each (task, repeat) is judged once; an unscored episode is tried again and otherwise
left out of the denominator and reported, never counted as a failure.

Results are episodes of the run under the evaluation's name, so an evaluation that was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deskhand.agents.seeding import call_seed
from deskhand.errors import ConfigError
from deskhand.rollout.episode_record import EpisodeResult, to_record
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.run_writer import new_row, row_of
from deskhand.rollout.scheduler import Scheduler
from deskhand.rollout.success_rates import Proportion, effective_sample_size, pass_at
from deskhand.store.run import TRAIN, EpisodeRow, Run
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import Task

ATTEMPTS = 3


class EpisodeRunner(Protocol):
    """What plays a ticket (`rollout.runner.Runner`)."""

    async def run(self, ticket: EpisodeRequest) -> EpisodeResult: ...


@dataclass(frozen=True)
class EvalReport:
    """What an evaluation found."""

    name: str
    success: Proportion
    by_family: dict[str, Proportion]
    """Of each family; where families are one task each, as those of files are, of the folders that they are named under: the
    domains of a benchmark."""
    first_click: Proportion
    """Over scored episodes whose task has a target."""
    reward: float
    """Mean over scored episodes."""
    unscored: dict[str, int] = field(default_factory=dict)
    """Repeats that have no score after all attempts, by cause of the last."""
    last_error: str = ""
    """Why the last of these has none; empty where all have a score, or a kill cut it off."""
    pass_at: dict[int, float] = field(default_factory=dict)
    """Chance that one of k tries of a task succeeds, for k = 1, 2, 4, ... up to the repeats; empty without repeats."""
    family_pass_at: dict[str, dict[int, float]] = field(default_factory=dict)


def build_eval_report(run: Run, name: str, asked: Collection[tuple[str, int]] | None = None) -> EvalReport:
    """Read an evaluation's results, complete or not: those of the (task, repeat) that are `asked` for, or all that were ever
    played under this name."""
    rows = [row for row in run.episodes(name) if asked is None or (row.task_id, row.member) in asked]
    scored = [row for row in rows if row.state == "scored"]
    clicked = [row for row in scored if row.first_click is not None]
    part_of = _parts(rows)
    families = sorted({part_of[row.family] for row in scored})
    done = {(row.task_id, row.member) for row in scored}
    lost = {(row.task_id, row.member): row for row in rows if row.state == "errored"}
    lost = {key: row for key, row in lost.items() if key not in done}
    of_family = {family: [row for row in scored if part_of[row.family] == family] for family in families}
    return EvalReport(
        name,
        _rate(scored, _succeeded),
        {family: _rate(rows, _succeeded) for family, rows in of_family.items()},
        _rate(clicked, lambda row: bool(row.first_click)),
        sum(row.reward or 0.0 for row in scored) / len(scored) if scored else math.nan,
        dict(Counter(row.cause or "" for row in lost.values())),
        _last_words(run, list(lost.values())),
        _pass_at(scored),
        {family: _pass_at(rows) for family, rows in of_family.items()},
    )


def _last_words(run: Run, lost: Sequence[EpisodeRow]) -> str:
    if not lost or not run.has_record(lost[-1].id):
        return ""
    return str(run.episode(lost[-1].id)[1]["outcome"].get("message", ""))


def _parts(rows: Sequence[EpisodeRow]) -> dict[str, str]:
    """The row of a table that each family belongs to."""
    tasks: dict[str, set[str]] = {}
    for row in rows:
        tasks.setdefault(row.family, set()).add(row.task_id)
    single = all(len(found) == 1 for found in tasks.values())
    return {family: family.partition("/")[0] if single else family for family in tasks}


def _succeeded(row: EpisodeRow) -> bool:
    return (row.value or 0.0) >= 1.0


def _rate(rows: Sequence[EpisodeRow], hit: Callable[[EpisodeRow], bool]) -> Proportion:
    counts = list(_by_task(rows, hit).values())
    effective = effective_sample_size(counts) if len(counts) < len(rows) else None
    return Proportion(sum(hits for hits, _ in counts), len(rows), effective)


def _pass_at(rows: Sequence[EpisodeRow]) -> dict[int, float]:
    counts = list(_by_task(rows, _succeeded).values())
    repeats = max((tries for _, tries in counts), default=0)
    return {2**n: pass_at(2**n, counts) for n in range(repeats.bit_length())} if repeats > 1 else {}


def _by_task(rows: Sequence[EpisodeRow], hit: Callable[[EpisodeRow], bool]) -> dict[str, tuple[int, int]]:
    """(hits, tries) of each task."""
    counts: dict[str, tuple[int, int]] = {}
    for row in rows:
        hits, tries = counts.get(row.task_id, (0, 0))
        counts[row.task_id] = hits + hit(row), tries + 1
    return counts


class _EvaluationSource:
    """Each task as often as it is repeated, unscored ones again at the end."""

    def __init__(
        self,
        run: Run,
        name: str,
        tasks: Sequence[Task],
        repeats: int,
        ended: Callable[[EpisodeResult], None] | None,
        seed: int,
    ) -> None:
        self._run, self._name, self._ended, self._seed = run, name, ended, seed
        done = {(row.task_id, row.member) for row in run.episodes(name, "scored")}
        self._left = [(task, member) for member in range(repeats) for task in tasks if (task.id, member) not in done][
            ::-1
        ]
        self._attempts: Counter[tuple[str, int]] = Counter()
        self._tasks = {task.id: task for task in tasks}
        self._in_flight = 0
        self._writing = asyncio.Lock()

    @property
    def exhausted(self) -> bool:
        return not self._left and not self._in_flight

    async def next(self) -> EpisodeRequest | None:
        if not self._left:
            return None
        task, member = self._left.pop()
        ticket = EpisodeRequest(
            uuid.uuid4().hex, task, None, member, call_seed(self._seed, self._name, task.id, member)
        )
        self._in_flight += 1
        self._attempts[task.id, member] += 1
        await self._write(lambda: self._run.start_episode(new_row(ticket, self._name)))
        return ticket

    async def on_result(self, result: EpisodeResult) -> None:
        scored = isinstance(result.outcome, Scored)
        row = row_of(result, self._name, "scored" if scored else "errored")

        def write() -> None:
            record, tensors = to_record(result)
            self._run.finish_episode(row, record, tensors)

        await self._write(write)
        self._in_flight -= 1
        if not scored and self._attempts[result.task_id, result.member] < ATTEMPTS:
            self._left.insert(0, (self._tasks[result.task_id], result.member))
        if self._ended is not None:
            self._ended(result)

    async def _write(self, write: Callable[[], None]) -> None:
        async with self._writing:
            await asyncio.to_thread(write)


async def evaluate(
    run: Run,
    name: str,
    tasks: Sequence[Task],
    runner: EpisodeRunner,
    concurrency: int,
    *,
    repeats: int = 1,
    ended: Callable[[EpisodeResult], None] | None = None,
    seed: int = 0,
) -> EvalReport:
    """Run every task `repeats` times, less what has a score under `name` already, `concurrency` episodes at a time.

    `ended` is told of each result. `seed`: with the name, the task and the repeat it says what the policy draws by, so that an
    interrupted evaluation goes on to the figures that it would have had.

    Raises `ConfigError` for a reserved name or a task twice, `InfrastructureError` when nothing but outages happens.
    """
    if name == TRAIN or not name:
        raise ConfigError(f"an evaluation cannot be named {name!r}; choose another name")
    if len({task.id for task in tasks}) != len(tasks):
        raise ConfigError(f"evaluation {name!r} holds a task twice")
    await asyncio.to_thread(run.abandon_in_flight, None, name)
    source = _EvaluationSource(run, name, tasks, repeats, ended, seed)
    scheduler = Scheduler(source, runner.run, concurrency)
    await scheduler.run()
    return await asyncio.to_thread(
        build_eval_report, run, name, {(task.id, member) for task in tasks for member in range(repeats)}
    )
