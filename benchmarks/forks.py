"""Fork a desktop by replaying its operations: `python -m benchmarks.forks [--full]`.

The oracle of a task plays its first steps on one desktop; operations and screens are recorded. A fork is a new desktop
with the same start state, on which the recorded operations are performed again. After each of them the screen is
compared with the recorded one, pixel by pixel, without the pointer and small animated regions such as a caret. Then the
oracle's other steps follow on the fork, which must score 1. Printed are milliseconds: the reset, which a pool of
prewarmed desktops does in advance, the task's set-up, and the replay. A fork whose screens differ is not used, and
counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.actions.ops import Op
from deskhand.desktop.base import DesktopSpec, Frame, StageableDesktop
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks.judge import ending, judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites import family_registry
from deskhand.tasks.task import Task, seed_for

FAMILIES = ("dialog_choice", "calculator_number", "terminal_run", "editor_replace")
SIZES = {"smoke": (FAMILIES[:1], 1), "small": (FAMILIES, 2), "full": (FAMILIES, 10)}
"""Families and forks of each, by size."""
FIRST_SEED = 700_000


@dataclass
class Recording:
    """The oracle's steps, and what the screen showed before and after each."""

    steps: list[list[Op]] = field(default_factory=list)
    screens: list[Frame] = field(default_factory=list)

    @property
    def fork_step(self) -> int:
        """Steps before the fork: half of them, and at least one."""
        return max(1, len(self.steps) // 2)


@dataclass(frozen=True)
class Fork:
    """Milliseconds until a fork was ready, and whether it can be used."""

    family: str
    num_steps: int
    reset_ms: float
    setup_ms: float
    replay_ms: float
    played_ms: float
    """What the same steps took when they were recorded."""
    differs_at: int | None
    """Steps after which the screen was not the recorded one for the first time; None if all were equal."""
    score: float | None
    """Score after the other steps; None if the screens differ."""

    @property
    def is_equal(self) -> bool:
        return self.differs_at is None

    @property
    def total_ms(self) -> float:
        return self.reset_ms + self.setup_ms + self.replay_ms


def fingerprint(frame: Frame, moving: Sequence[tuple[int, int, int, int]]) -> str:
    """Return a digest of a screen's pixels without the pointer and the boxes of animated regions."""
    pixels = frame.without_cursor().bgrx[..., :3].copy()
    for left, top, right, bottom in moving:
        pixels[top:bottom, left:right] = 0
    return hashlib.sha256(pixels.data).hexdigest()


def is_same(one: Frame, two: Frame) -> bool:
    """Return whether two screens are equal outside the regions that move in either."""
    moving = (*one.moving, *two.moving)
    return one.size == two.size and fingerprint(one, moving) == fingerprint(two, moving)


@asynccontextmanager
async def started(task: Task) -> AsyncIterator[tuple[StageableDesktop, Frame, float, float]]:
    """Yield a new desktop in the task's start state with its screen, and the milliseconds of reset and set-up."""
    desktop, began = LocalDesktop(), time.perf_counter()
    try:
        await desktop.reset(DesktopSpec(task.theme, task.width, task.height))
        ready = time.perf_counter()
        await task.setup(desktop)
        frame = await desktop.observe()
        yield desktop, frame, 1000 * (ready - began), 1000 * (time.perf_counter() - ready)
    finally:
        await desktop.close()


async def record(task: Task) -> tuple[Recording, float]:
    """Play the oracle; return the recording and the milliseconds of the steps before the fork."""
    found, marks = Recording(), [0.0]
    async with started(task) as (desktop, frame, *_):
        found.screens.append(frame)
        async for ops in task.oracle(desktop):
            began = time.perf_counter()
            found.screens.append(await desktop.perform(ops, action_id=f"recorded#{len(found.steps)}"))
            found.steps.append(ops)
            marks.append(1000 * (time.perf_counter() - began))
    return found, sum(marks[: found.fork_step + 1])


async def fork(task: Task, recording: Recording, played_ms: float) -> Fork:
    """Replay the first steps on a new desktop, then finish the task there."""
    count = recording.fork_step
    async with started(task) as (desktop, frame, reset_ms, setup_ms):
        differs_at = None if is_same(frame, recording.screens[0]) else 0
        began = time.perf_counter()
        for index, ops in enumerate(recording.steps[:count]):
            frame = await desktop.perform(ops, action_id=f"fork#{index}")
            if differs_at is None and not await asyncio.to_thread(is_same, frame, recording.screens[index + 1]):
                differs_at = index + 1
        replay_ms, score = 1000 * (time.perf_counter() - began), None
        if differs_at is None:
            for index, ops in enumerate(recording.steps[count:], count):
                await desktop.perform(ops, action_id=f"fork#{index}")
            outcome = await judge(task, desktop, acted_at=time.monotonic(), **ending(recording.steps[-1]))
            score = outcome.value if isinstance(outcome, Scored) else None
    return Fork(task.family, count, reset_ms, setup_ms, replay_ms, played_ms, differs_at, score)


def print_table(forks: Sequence[Fork]) -> None:
    """Print the medians of each family."""
    names = (
        "family",
        "forks",
        "equal screens",
        "steps",
        "reset, ms",
        "set-up, ms",
        "replay, ms",
        "recorded, ms",
        "all, ms",
    )
    print(f"| {' | '.join(names)} |\n|{' --- |' * len(names)}")
    for family in dict.fromkeys(each.family for each in forks):
        part = [each for each in forks if each.family == family]
        columns = ("num_steps", "reset_ms", "setup_ms", "replay_ms", "played_ms", "total_ms")
        medians = [f"{statistics.median(getattr(each, name) for each in part):.0f}" for name in columns]
        print(f"| {family} | {len(part)} | {sum(each.is_equal for each in part)} | {' | '.join(medians)} |")
    for each in forks:
        if each.differs_at is not None:
            print(f"{each.family}: the screen after {each.differs_at} steps is another one")


async def measure(families: Sequence[str], count: int) -> list[Fork]:
    """Record and fork `count` tasks of each family, one at a time."""
    found = []
    for family in families:
        for index in range(count):
            task = family_registry.make_task(family, seed_for("train", FIRST_SEED + index))
            found.append(await fork(task, *await record(task)))
    return found


def main() -> None:
    options = parser_of(__doc__, "10 forks of each family").parse_args()
    print_head()
    forks = asyncio.run(measure(*SIZES[options.size]))
    print_table(forks)
    thresholds, equal = Thresholds(), [each for each in forks if each.is_equal]
    share, solved = len(equal) / len(forks), sum(each.score == 1.0 for each in equal)
    thresholds.check("forks with equal screens", share >= 0.9, f"{len(equal)} of {len(forks)}", "90 %")
    thresholds.check("solved from equal screens", solved == len(equal), f"{solved} of {len(equal)}", "all")
    thresholds.finish()


if __name__ == "__main__":
    main()
