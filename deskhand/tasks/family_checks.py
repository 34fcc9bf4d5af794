"""Requirements on every family, as checks that list violations.

Used by the tests and by authors of families: `check_family` only generates tasks, `check_family_live` plays them. The
oracle must score 1; doing nothing, a wrong first click and stopping one step early must not. It acts on
nothing that the instruction or a frame has not shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from deskhand.actions.ops import Click, Done, Op, Point, screen_px, to_screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError
from deskhand.tasks.judge import MilestoneTracker, ending, initial_score, judge
from deskhand.tasks.oracle_sight import needs_frames, unread_texts
from deskhand.tasks.outcome import Errored, Outcome, Scored
from deskhand.tasks.task import Family, Task, split_of

Lease = Callable[[Task], AbstractAsyncContextManager[StageableDesktop]]
"""Leases a desktop that was just reset to the task's theme and screen size."""
Policy = Callable[[Task, StageableDesktop], AsyncIterator[list[Op]]]
"""Yields lists of ops, one list per step, like `Task.oracle`."""


@dataclass(frozen=True)
class Playthrough:
    """One run of one task. `first_click_on_target` is None if nothing was clicked or the task has no target."""

    baseline: float
    outcome: Outcome
    milestone_share: float
    steps: int
    first_click_on_target: bool | None
    setup_s: float
    play_s: float
    ops: tuple[list[Op], ...] = ()
    """The ops of each step."""

    @property
    def value(self) -> float | None:
        return self.outcome.value if isinstance(self.outcome, Scored) else None


async def oracle(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
    """Yield the steps of the task's oracle."""
    async for ops in task.oracle(desktop):
        yield ops


async def wrong_first_click(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
    """Yield the oracle's steps, with the first click on the first distractor."""
    _, distractors = await task.first_click_targets(desktop)
    size = screen_px(task.width, task.height)
    wrong_point = Point(*distractors[0].center, size) if distractors else None
    async for ops in task.oracle(desktop):
        changed = list(ops)
        for index, op in enumerate(changed):
            if isinstance(op, Click) and wrong_point is not None:
                changed[index], wrong_point = replace(op, point=wrong_point), None
        yield changed


def stops_early(num_steps: int) -> Policy:
    """Return the oracle's policy, done after `num_steps` steps."""

    async def policy(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        left = num_steps
        async for ops in task.oracle(desktop):
            if left == 0:
                break
            left -= 1
            yield ops
        yield [Done()]

    return policy


def near_miss(solved: Playthrough) -> Policy:
    """Return a policy close to `solved`, the oracle's run: a wrong first click, or without a target one step less."""
    return wrong_first_click if solved.first_click_on_target is not None else stops_early(max(0, solved.steps - 2))


async def play(task: Task, desktop: StageableDesktop, policy: Policy = oracle) -> Playthrough:
    """Set up `task` on a freshly reset desktop, run `policy` and judge.

    Raises `ConfigError` if the start state already solves the task, and what setup and desktop raise.
    """
    began = time.monotonic()
    await task.setup(desktop)
    target, _ = await task.first_click_targets(desktop)
    ready = time.monotonic()
    start = await initial_score(task, desktop)
    tracker, steps, hit, acted_at = MilestoneTracker(task), list[list[Op]](), None, None
    async for ops in policy(task, desktop):
        for op in ops:
            if isinstance(op, Click) and op.point is not None and hit is None and target is not None:
                hit = target.contains(*to_screen_px(op.point, task.width, task.height))
        await desktop.perform(ops, action_id=f"{task.id}#{len(steps)}")
        acted_at = time.monotonic()
        steps.append(ops)
        await tracker.after_step(desktop)
    outcome = await judge(task, desktop, milestones=tracker, acted_at=acted_at, **ending(steps[-1] if steps else ()))
    times = ready - began, time.monotonic() - ready
    return Playthrough(start, outcome, tracker.reached_share, len(steps), hit, *times, tuple(steps))


def check_family(family: Family, seeds: Iterable[int]) -> list[str]:
    """Return the violations in the tasks that `family` generates, one line each. Starts nothing."""
    problems: list[str] = []
    instructions: set[str] = set()
    known: set[tuple[str, ...]] = set()
    count = 0
    for seed in seeds:
        count += 1
        where = f"{family.name} seed {seed}"
        task, again = family.generate(seed), family.generate(seed)
        instructions.add(task.instruction)
        known.add(task.oracle_knows)
        if _description(task) != _description(again):
            problems.append(f"{where}: two generations differ; derive all randomness from family and seed")
        if (task.family, task.seed, task.difficulty) != (family.name, seed, family.difficulty):
            problems.append(f"{where}: the task has family {task.family}, seed {task.seed}, tier {task.difficulty}")
        if task.split != split_of(seed) or str(seed) not in task.id:
            problems.append(f"{where}: id {task.id} or split {task.split} does not match the seed")
        if not task.instruction.strip() or "\n" in task.instruction:
            problems.append(f"{where}: instruction must be one line, got {task.instruction!r}")
        penalties = {"format_penalty": task.format_penalty, "step_cost": task.step_cost}
        problems += [f"{where}: {name} must be >= 0, got {value}" for name, value in penalties.items() if value < 0]
        if task.max_steps < 2:
            problems.append(f"{where}: max_steps must be at least 2, got {task.max_steps}")
        try:
            MilestoneTracker(task)
        except ConfigError as error:
            problems.append(str(error))
    if len(known) > 1:
        problems.append(
            f"{family.name}: oracle_knows differs between seeds; what a seed decides is not general knowledge"
        )
    if count > 3 and len(instructions) < 2:
        problems.append(f"{family.name}: {count} seeds give the same instruction")
    if not family.applications:
        problems.append(f"{family.name}: applications: no Debian package is named")
    return problems


def _description(task: Task) -> tuple[object, ...]:
    milestones = [(milestone.name, milestone.weight) for milestone in task.milestones]
    size = (task.width, task.height, task.max_steps)
    return task.id, task.instruction, task.theme, task.difficulty, size, milestones, task.metadata


async def check_family_live(
    family: Family, seeds: Iterable[int], lease: Lease, *, max_concurrent: int = 4
) -> list[str]:
    """Play the tasks and return the violations, one line each. At most `max_concurrent` desktops are leased.

    Raises what desktops and programs raise (`InfrastructureError`), after all runs have ended.
    """
    slots = asyncio.Semaphore(max_concurrent)

    async def run(task: Task, policy: Policy) -> Playthrough | Exception:
        async with slots:
            try:
                async with lease(task) as desktop:
                    return await play(task, desktop, policy)
            except Exception as error:
                return error

    async def both(task: Task) -> list[str]:
        solved = await run(task, oracle)
        wrong = solved if isinstance(solved, Exception) else await run(task, near_miss(solved))
        problems = _problems(task, solved, wrong)
        if isinstance(solved, Exception) or not needs_frames(task, task.instruction, solved.ops):
            return problems
        async with slots:
            unread = await find_unread_texts(task, lease, list(solved.ops))
        return [*problems, *(f"{task.family} seed {task.seed}: the oracle's {problem}" for problem in unread or ())]

    tasks = [family.generate(seed) for seed in seeds]
    found = await asyncio.gather(*map(both, tasks), return_exceptions=True)
    for problems in found:
        if isinstance(problems, BaseException):
            raise problems
    return [problem for problems in found if not isinstance(problems, BaseException) for problem in problems]


async def find_unread_texts(task: Task, lease: Lease, steps: list[list[Op]]) -> list[str] | None:
    """Replay an oracle and return what it acts on before a frame shows it; None without an accessibility tree."""
    task = replace(task, accessibility=True)
    try:
        async with lease(task) as desktop:
            await task.setup(desktop)
            return await unread_texts(task, desktop, steps)
    except ConfigError:  # the packages are not installed, or guests of this machine have no name
        return None


def _problems(task: Task, solved: Playthrough | Exception, wrong: Playthrough | Exception) -> list[str]:
    """Return the violations of two runs. Raises their exceptions, except `ConfigError` of the oracle's."""
    where = f"{task.family} seed {task.seed}"
    if isinstance(solved, ConfigError):
        return [str(solved)]
    if isinstance(solved, Exception):
        raise solved
    if isinstance(wrong, Exception):
        raise wrong
    problems: list[str] = []
    if solved.value != 1.0:
        problems.append(f"{where}: the oracle scores {_outcome_text(solved.outcome)}, not 1")
    if solved.steps > task.max_steps:
        problems.append(f"{where}: the oracle takes {solved.steps} steps, max_steps is {task.max_steps}")
    if solved.first_click_on_target is False:
        problems.append(f"{where}: the oracle's first click is outside first_click_targets")
    if solved.baseline != 0.0:
        problems.append(f"{where}: a no-op scores {solved.baseline:g}, not 0")
    if wrong.value is None or wrong.value >= 1.0:
        problems.append(f"{where}: a wrong first click, or one step less, scores {_outcome_text(wrong.outcome)}")
    return problems


def _outcome_text(outcome: Outcome) -> str:
    return f"errored ({outcome.cause}: {outcome.message})" if isinstance(outcome, Errored) else f"{outcome.value:g}"
