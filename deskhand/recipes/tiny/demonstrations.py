"""Training data for the bundled policy, collected on local desktops.

Used by `recipes.tiny.build`; start with `collect_scenes` and `demonstrate`.

A *scene* is one screenshot with all its grounding questions: (instruction, rectangle of the first click). The windows
are rearranged many times for each start of the programs. A *demonstration* is a whole episode of the oracle. In a noisy
demonstration the first click hits something else that resembles the target.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deskhand.actions.formats import deskhand_json
from deskhand.actions.ops import Click, Done, Op, Type
from deskhand.errors import InfrastructureError
from deskhand.recipes.grounding import MIDDLE, point_in
from deskhand.tasks.task import Rect, Task

GRID = 20
"""Grid spacing of trained coordinates, in thousandths of the screen, so that each target has few correct answers."""


@dataclass(frozen=True)
class LabeledScreen:
    """A screenshot `pixels` (uint8[H, W, 3]) with `questions` (instruction, rectangle in pixels)."""

    family: str
    pixels: np.ndarray
    questions: list[tuple[str, Rect]]


@dataclass(frozen=True)
class RecordedDemonstration:
    """An episode: `texts[i]` is the reply to screenshot `frames[i]`.

    `noise` is the kind of deviation from the oracle, "" if there is none. `value` is the score.
    """

    family: str
    instruction: str
    frames: list[np.ndarray]
    texts: list[str]
    noise: str
    value: float

    @property
    def typed(self) -> bool:
        """Whether the episode types text."""
        return any(isinstance(op, Type) for text in self.texts for op in deskhand_json.parse(text))


def click_text(rect: Rect, width: int, height: int, rng: random.Random, spread: float = MIDDLE) -> str:
    """Return a click on a random grid point in the middle of `rect`, in the policy's action format.

    `spread` is the share of the width and height that the click may hit.
    """
    return deskhand_json.emit([Click(point_in(rect, width, height, GRID, rng, spread))])


async def collect_scenes(desktop, task: Task, placements: int) -> list[LabeledScreen]:
    """Set up `task` once and take a screenshot of each of `placements` arrangements of its windows."""
    assert task.grounding_targets is not None
    assert task.shuffle_windows is not None
    await task.setup(desktop)
    scenes = []
    for k in range(placements):
        if k:
            await task.shuffle_windows(desktop, task.seed * 1009 + k)
        frame = await desktop.observe()
        scenes.append(LabeledScreen(task.family, frame.rgb(), await task.grounding_targets(desktop)))
    return scenes


async def demonstrate(desktop, task: Task, rng: random.Random, noise: float) -> RecordedDemonstration:
    """Run one episode of the oracle. With probability `noise` its first click hits a wrong target."""
    await task.setup(desktop)
    _, others = await task.first_click_targets(desktop)
    wrong = rng.choice(others) if others and rng.random() < noise else None
    frames, texts = [], []
    frame = await desktop.observe()
    step = 0
    async for ops in task.oracle(desktop):
        missed = wrong if step == 0 else None
        text = click_text(missed, task.width, task.height, rng) if missed else policy_text(ops, task, rng)
        frames.append(frame.rgb())
        texts.append(text)
        performed = deskhand_json.parse(text)
        if not any(isinstance(op, Done) for op in performed):
            frame = await desktop.perform(performed, action_id=f"demo-{step}")
        step += 1
    check = await task.check(desktop)
    return RecordedDemonstration(
        task.family, task.instruction, frames, texts, "wrong_first_click" if wrong else "", check.value
    )


def policy_text(ops: list[Op], task: Task, rng: random.Random) -> str:
    """Return the oracle's ops in the policy's action format, with the coordinates of a single click on the grid."""
    if len(ops) == 1 and isinstance(ops[0], Click) and ops[0].point is not None:
        point = ops[0].point
        rect = Rect(int(point.x) - 4, int(point.y) - 3, int(point.x) + 5, int(point.y) + 4)
        return click_text(rect, task.width, task.height, rng)
    return deskhand_json.emit(ops)


async def gather(
    make_desktop: Callable[[Task], Awaitable], tasks: Iterable[Task], play: Callable[..., Awaitable[Any]], workers: int
) -> list[Any]:
    """Run `play(desktop, task)` for each task on a new desktop, `workers` at a time, and return the results in any
    order. Raises `InfrastructureError` if the desktops of more than 5 % of the tasks failed; fewer failed tasks are
    skipped."""
    pending = list(tasks)[::-1]
    results: list[Any] = []
    allowed, failures = len(pending) // 20, []

    async def work() -> None:
        while pending:
            task = pending.pop()
            desktop = await make_desktop(task)
            try:
                results.append(await play(desktop, task))
            except InfrastructureError as error:
                failures.append(error)
                if len(failures) > allowed:
                    raise
            finally:
                await desktop.close()

    await asyncio.gather(*(work() for _ in range(workers)))
    return results
