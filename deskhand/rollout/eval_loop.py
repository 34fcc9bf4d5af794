"""Evaluation of a policy on held-out tasks.

Used by `recipes.evaluate`; start with `evaluate`. Results are stored as episodes of the run with the evaluation's name
as phase, so an interrupted evaluation resumes where it stopped.

Invariant: each (task, sample) has at most one score. Errored episodes are retried, and success is reported twice: of
the scored episodes, where an outage is no failure, and of all that were started, where an episode without a score gains
nothing. Decisions (the best checkpoint) use the second, and pass@k counts samples without a score as failures.
"""

from __future__ import annotations

import asyncio
import json
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
from deskhand.rollout.success_rates import NOTHING, Proportion, effective_sample_size, pass_at
from deskhand.store.episode_search import count_replies
from deskhand.store.run import TRAIN, EpisodeRow, Run
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import Task

MAX_ATTEMPTS = 3
MAX_QUOTED = 80
"""Characters of a reply in a warning."""
NOTABLE_DIFFERENCE = 0.01
"""Difference of the two success rates above which a report warns."""


class EpisodeRunner(Protocol):
    """Interface of `rollout.runner.RecordedRunner` and `ApiRunner`."""

    @property
    def num_judging(self) -> int: ...

    async def run(self, request: EpisodeRequest) -> EpisodeResult: ...


@dataclass(frozen=True)
class EvalReport:
    """Results of an evaluation."""

    name: str
    success: Proportion
    """Success of the scored episodes."""
    by_family: dict[str, Proportion]
    """Success by family. If each family is a single task (task files), by the first part of its name: the domain."""
    first_click: Proportion
    """First clicks on target, of scored episodes whose task has one."""
    reward: float
    """Mean reward of the scored episodes."""
    errored: dict[str, int] = field(default_factory=dict)
    """Samples without a score after all attempts, by cause of the last attempt."""
    last_error: str = ""
    """Message of the last errored sample; empty if there is none or a kill interrupted it."""
    pass_at: dict[int, float] = field(default_factory=dict)
    """pass@k for k = 1, 2, 4, ... up to the samples per task; empty with one sample. A sample that stayed without a
    score counts as a failure."""
    family_pass_at: dict[str, dict[int, float]] = field(default_factory=dict)
    success_of_started: Proportion = NOTHING
    """Success of all episodes that were played, every attempt that errored included."""
    family_of_started: dict[str, Proportion] = field(default_factory=dict)
    num_guest_trusted: int = 0
    """Number of scores above 0 that depend on what a guest program reported, and that it could have forged."""
    replies: dict[str, int] = field(default_factory=dict)
    """Replies of the scored episodes by kind of error; "" for none."""
    unparsed_reply: str = ""
    """A reply that could not be parsed; empty if there is none."""

    @property
    def num_unscored(self) -> int:
        """Number of episodes that were played and have no score."""
        return max(0, self.success_of_started.total - self.success.total)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines on why success may not be that of the policy."""
        return tuple(line for line in (self.warning, self.reply_warning) if line)

    @property
    def reply_warning(self) -> str:
        """A line if half of the replies or more could not be parsed or were cut; else empty."""
        total, cut = sum(self.replies.values()), self.replies.get("truncated", 0)
        unparsed = self.replies.get("format", 0)
        if not total or 2 * (cut + unparsed) < total:
            return ""
        share = f"none of {total}" if cut + unparsed == total else f"only {total - cut - unparsed} of {total}"
        text = f"{self.name}: {share} replies could be parsed, so success says little about the policy"
        if unparsed:
            text += "; set agent.action_format to the format of the model and agent.prompt_style=full, which describes"
            text += f" it (a reply: {json.dumps(self.unparsed_reply[:MAX_QUOTED])})"
        return text + (f"; {cut} were cut at the token limit: raise agent.max_new_tokens" if cut else "")

    @property
    def warning(self) -> str:
        """A line if the episodes without a score change success by more than a point; else empty."""
        of_scored, of_started = self.success, self.success_of_started
        if not self.num_unscored or abs(of_scored.value - of_started.value) <= NOTABLE_DIFFERENCE:
            return ""
        scored = f"{100 * of_scored.value:.1f} % of the scored" if of_scored.total else "none was scored"
        return (
            f"{self.name}: {self.num_unscored} of {of_started.total} episodes have no score, so success is uncertain: "
            f"{scored}, {100 * of_started.value:.1f} % of all that were started; read their causes before you compare"
        )


def build_eval_report(run: Run, name: str, samples: Collection[tuple[str, int]] | None = None) -> EvalReport:
    """Return the results so far of an evaluation: of the given (task, sample) pairs, or of all stored episodes."""
    rows = [row for row in run.episodes(name) if samples is None or (row.task_id, row.member) in samples]
    scored = [row for row in rows if row.state == "scored"]
    clicked = [row for row in scored if row.first_click is not None]
    label_of = _family_labels(rows)
    done = {(row.task_id, row.member) for row in scored}
    errored = {(row.task_id, row.member): row for row in rows if row.state == "errored"}
    errored = {key: row for key, row in errored.items() if key not in done}
    started = [row for row in rows if row.state == "scored" or (row.state == "errored" and run.has_record(row.id))]
    guest_trusted = run.guest_trusted_episodes(name)
    samples_of = [*scored, *errored.values()]
    replies, unparsed_reply = count_replies(run, [row.id for row in scored])
    families = sorted({label_of[row.family] for row in started})

    def by_label(rows: Sequence[EpisodeRow]) -> dict[str, list[EpisodeRow]]:
        return {label: [row for row in rows if label_of[row.family] == label] for label in families}

    return EvalReport(
        name,
        _proportion(scored, _succeeded),
        {family: _proportion(rows, _succeeded) for family, rows in by_label(scored).items()},
        _proportion(clicked, lambda row: bool(row.first_click)),
        sum(row.reward or 0.0 for row in scored) / len(scored) if scored else math.nan,
        dict(Counter(row.cause or "" for row in errored.values())),
        _last_error(run, list(errored.values())),
        _pass_at(samples_of),
        {family: _pass_at(rows) for family, rows in by_label(samples_of).items()},
        _proportion(started, _succeeded),
        {family: _proportion(rows, _succeeded) for family, rows in by_label(started).items()},
        sum(row.id in guest_trusted for row in scored if row.value),
        replies,
        unparsed_reply,
    )


def _last_error(run: Run, errored: Sequence[EpisodeRow]) -> str:
    if not errored or not run.has_record(errored[-1].id):
        return ""
    return str(run.episode(errored[-1].id)[1]["outcome"].get("message", ""))


def _family_labels(rows: Sequence[EpisodeRow]) -> dict[str, str]:
    tasks: dict[str, set[str]] = {}
    for row in rows:
        tasks.setdefault(row.family, set()).add(row.task_id)
    single = all(len(ids) == 1 for ids in tasks.values())
    return {family: family.partition("/")[0] if single else family for family in tasks}


def _succeeded(row: EpisodeRow) -> bool:
    return (row.value or 0.0) >= 1.0


def _proportion(rows: Sequence[EpisodeRow], hit: Callable[[EpisodeRow], bool]) -> Proportion:
    counts = list(_by_task(rows, hit).values())
    effective = effective_sample_size(counts) if len(counts) < len(rows) else None
    return Proportion(sum(hits for hits, _ in counts), len(rows), effective)


def _pass_at(rows: Sequence[EpisodeRow]) -> dict[int, float]:
    counts = list(_by_task(rows, _succeeded).values())
    most = max((tries for _, tries in counts), default=0)
    return {2**n: pass_at(2**n, counts) for n in range(most.bit_length())} if most > 1 else {}


def _by_task(rows: Sequence[EpisodeRow], hit: Callable[[EpisodeRow], bool]) -> dict[str, tuple[int, int]]:
    """Return (hits, tries) by task."""
    counts: dict[str, tuple[int, int]] = {}
    for row in rows:
        hits, tries = counts.get(row.task_id, (0, 0))
        counts[row.task_id] = hits + hit(row), tries + 1
    return counts


class _EvaluationSource:
    """Every sample of every task; errored ones again at the end."""

    def __init__(
        self,
        run: Run,
        name: str,
        tasks: Sequence[Task],
        samples_per_task: int,
        on_result: Callable[[EpisodeResult], None] | None,
        seed: int,
    ) -> None:
        self._run, self._name, self._on_result, self._seed = run, name, on_result, seed
        done = {(row.task_id, row.member) for row in run.episodes(name, "scored")}
        self._left = [
            (task, member) for member in range(samples_per_task) for task in tasks if (task.id, member) not in done
        ][::-1]
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
        request = EpisodeRequest(
            uuid.uuid4().hex, task, None, member, call_seed(self._seed, self._name, task.id, member)
        )
        self._in_flight += 1
        self._attempts[task.id, member] += 1
        await self._write(lambda: self._run.start_episode(new_row(request, self._name)))
        return request

    async def on_result(self, result: EpisodeResult) -> None:
        scored = isinstance(result.outcome, Scored)
        row = row_of(result, self._name, "scored" if scored else "errored")

        def write() -> None:
            record, tensors = to_record(result)
            self._run.finish_episode(row, record, tensors)

        await self._write(write)
        self._in_flight -= 1
        solved = isinstance(result.outcome, Errored) and result.outcome.cause == "already_solved"
        if not scored and not solved and self._attempts[result.task_id, result.member] < MAX_ATTEMPTS:
            self._left.insert(0, (self._tasks[result.task_id], result.member))
        if self._on_result is not None:
            self._on_result(result)

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
    samples_per_task: int = 1,
    on_result: Callable[[EpisodeResult], None] | None = None,
    seed: int = 0,
) -> EvalReport:
    """Run every task `samples_per_task` times, except samples that already have a score under `name`.

    `seed`, name, task and sample determine the sampling seed of an episode, so a resumed evaluation has the results of
    an uninterrupted one. Raises `ConfigError` if the name is reserved or a task appears twice, `InfrastructureError` if
    too many consecutive episodes errored.
    """
    if name == TRAIN or not name:
        raise ConfigError(f"evaluation name {name!r} is reserved; choose another name")
    if len({task.id for task in tasks}) != len(tasks):
        raise ConfigError(f"evaluation {name!r}: duplicate task")
    await asyncio.to_thread(run.abandon_in_flight, None, name)
    source = _EvaluationSource(run, name, tasks, samples_per_task, on_result, seed)
    scheduler = Scheduler(source, runner.run, concurrency, num_judging=runner.num_judging)
    await scheduler.run()
    return await asyncio.to_thread(
        build_eval_report, run, name, {(task.id, member) for task in tasks for member in range(samples_per_task)}
    )
