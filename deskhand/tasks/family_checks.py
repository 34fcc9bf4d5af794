"""What every family must hold, as checks that list what is wrong. Invariant: a family that passes cannot be solved by doing
nothing (which is all that an agent does who only says "done"), nor by its own oracle led astray at the first click or one
step too quick, and its oracle solves it.

`lint` only generates tasks; `lint_live` plays them on a desktop that the caller provides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from deskhand.actions.ops import Click, Done, Op, Point, screen_px, to_screen_px
from deskhand.errors import ConfigError
from deskhand.tasks.judge import MilestoneTracker, initial_score, judge
from deskhand.tasks.outcome import Errored, Outcome, Scored
from deskhand.tasks.task import Family, StagedDesktopLike, Task, split_of

Lease = Callable[[Task], AbstractAsyncContextManager[StagedDesktopLike]]
"""Lends a desktop that was just reset to the task's template and screen size."""
Policy = Callable[[Task, StagedDesktopLike], AsyncIterator[list[Op]]]
"""Lists of ops, one list a step, as `Task.oracle` yields them."""


@dataclass(frozen=True)
class Playthrough:
    """One play of one task. `first_click_on_target` is None when nothing was clicked or the task has no target."""

    baseline: float
    outcome: Outcome
    milestone_share: float
    steps: int
    first_click_on_target: bool | None
    setup_s: float
    play_s: float

    @property
    def value(self) -> float | None:
        return self.outcome.value if isinstance(self.outcome, Scored) else None


async def oracle(task: Task, desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
    """The task's own oracle."""
    async for ops in task.oracle(desktop):
        yield ops


async def wrong_first_click(task: Task, desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
    """The oracle, but its first click lands on the first of the things that the target could be taken for."""
    _, others = await task.first_click_targets(desktop)
    place: Point | None = Point(*others[0].center, screen_px(task.width, task.height)) if others else None
    async for ops in task.oracle(desktop):
        changed = list(ops)
        for index, op in enumerate(changed):
            if isinstance(op, Click) and place is not None:
                changed[index], place = replace(op, point=place), None
        yield changed


def stops_early(acts: int) -> Policy:
    """The oracle that says it is done after so many steps."""

    async def policy(task: Task, desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        left = acts
        async for ops in task.oracle(desktop):
            if left == 0:
                break
            left -= 1
            yield ops
        yield [Done()]

    return policy


def near_miss(solved: Playthrough) -> Policy:
    """What does nearly what the oracle did in `solved`: its first click on another thing, or, where the task has no target, all
    but its last step before it was done."""
    return wrong_first_click if solved.first_click_on_target is not None else stops_early(max(0, solved.steps - 2))


async def play(task: Task, desktop: StagedDesktopLike, policy: Policy = oracle) -> Playthrough:
    """Set up `task` on a freshly reset desktop, let `policy` act, and judge.

    Raises `ConfigError` when the start state already solves it, and what set-up and desktop raise.
    """
    began = time.monotonic()
    await task.setup(desktop)
    target, _ = await task.first_click_targets(desktop)
    ready = time.monotonic()
    start = await initial_score(task, desktop)
    tracker, steps, hit = MilestoneTracker(task), 0, None
    async for ops in policy(task, desktop):
        for op in ops:
            if isinstance(op, Click) and op.point is not None and hit is None and target is not None:
                hit = target.contains(*to_screen_px(op.point, task.width, task.height))
        await desktop.perform(ops, action_id=f"{task.id}#{steps}")
        steps += 1
        await tracker.after_step(desktop)
    outcome = await judge(task, desktop, milestones=tracker)
    return Playthrough(start, outcome, tracker.reached_share, steps, hit, ready - began, time.monotonic() - ready)


def check_family(family: Family, seeds: Iterable[int]) -> list[str]:
    """What is wrong with the tasks that `family` generates, one line each; nothing is started."""
    problems: list[str] = []
    instructions: set[str] = set()
    count = 0
    for seed in seeds:
        count += 1
        where = f"{family.name} seed {seed}"
        task, again = family.generate(seed), family.generate(seed)
        instructions.add(task.instruction)
        if _description(task) != _description(again):
            problems.append(f"{where}: two generations differ; use only a random generator made from family and seed")
        if (task.family, task.seed, task.difficulty) != (family.name, seed, family.tier):
            problems.append(f"{where}: the task says family {task.family}, seed {task.seed}, tier {task.difficulty}")
        if task.split != split_of(seed) or str(seed) not in task.id:
            problems.append(f"{where}: id {task.id} or split {task.split} does not follow from the seed")
        if not task.instruction.strip() or "\n" in task.instruction:
            problems.append(f"{where}: the instruction must be one line of text, not {task.instruction!r}")
        if task.format_penalty < 0:
            problems.append(
                f"{where}: format_penalty {task.format_penalty} would pay for replies that are not understood"
            )
        if task.step_cost < 0:
            problems.append(f"{where}: step_cost {task.step_cost} would pay for steps")
        if task.max_steps < 2:
            problems.append(f"{where}: max_steps {task.max_steps} leaves no step before the last")
        try:
            MilestoneTracker(task)
        except ConfigError as error:
            problems.append(str(error))
    if count > 3 and len(instructions) < 2:
        problems.append(f"{family.name}: {count} seeds give one instruction; make the variants differ")
    if not family.applications:
        problems.append(f"{family.name}: name the Debian packages that it needs")
    return problems


def _description(task: Task) -> tuple[object, ...]:
    milestones = [(milestone.name, milestone.weight) for milestone in task.milestones]
    size = (task.width, task.height, task.max_steps)
    return task.id, task.instruction, task.theme, task.difficulty, size, milestones, task.metadata


async def check_family_live(family: Family, seeds: Iterable[int], lease: Lease, *, side_by_side: int = 4) -> list[str]:
    """What is wrong with the tasks when they are played, one line each. At most `side_by_side` desktops are leased at a time.

    Raises what desktops and programs raise once all plays have ended (`InfrastructureError`).
    """
    places = asyncio.Semaphore(side_by_side)

    async def played(task: Task, policy: Policy) -> Playthrough | Exception:
        async with places:
            try:
                async with lease(task) as desktop:
                    return await play(task, desktop, policy)
            except Exception as error:
                return error

    async def both(task: Task) -> tuple[Playthrough | Exception, Playthrough | Exception]:
        solved = await played(task, oracle)
        return solved, solved if isinstance(solved, Exception) else await played(task, near_miss(solved))

    tasks = [family.generate(seed) for seed in seeds]
    pairs = zip(tasks, await asyncio.gather(*map(both, tasks)), strict=True)
    return [problem for task, (good, bad) in pairs for problem in _problems(task, good, bad)]


def _problems(task: Task, solved: Playthrough | Exception, wrong: Playthrough | Exception) -> list[str]:
    """What is wrong by an oracle's trial and a misled one. Raises what they raised, unless it is the task's fault."""
    where = f"{task.family} seed {task.seed}"
    if isinstance(solved, ConfigError):
        return [str(solved)]
    if isinstance(solved, Exception):
        raise solved
    if isinstance(wrong, Exception):
        raise wrong
    problems: list[str] = []
    if solved.value != 1.0:
        problems.append(f"{where}: the oracle scores {_words(solved.outcome)}, not 1")
    if solved.steps > task.max_steps:
        problems.append(f"{where}: the oracle takes {solved.steps} steps, max_steps is {task.max_steps}")
    if solved.first_click_on_target is False:
        problems.append(f"{where}: the oracle's first click is outside the rectangle that targets() gives")
    if solved.baseline != 0.0:
        problems.append(f"{where}: doing nothing scores {solved.baseline:g}, not 0")
    if wrong.value is None or wrong.value >= 1.0:
        led = f"{where}: the oracle with its first click on another thing, or a step too few,"
        problems.append(f"{led} scores {_words(wrong.outcome)}")
    return problems


def _words(outcome: Outcome) -> str:
    return f"unscored ({outcome.cause}: {outcome.message})" if isinstance(outcome, Errored) else f"{outcome.value:g}"
