"""Screenshots with questions about where their elements are, as training rows of `deskhand sft`.

Used by `recipes.sft`; start with `plan_screens` and `screen_rows`. A start state is rearranged many times without
restarting programs (`Task.shuffle_windows`), and each arrangement gives one screenshot with all questions about it
(`Task.grounding_targets`).

Invariant: only training seeds are used; the same screens and questions give the same rows.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from deskhand.actions.ops import REL_1000, Click, Op, Point, in_space
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.agents.prompts import Turn
from deskhand.desktop.base import DesktopPoolProtocol, StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.recipes.suite import Suite
from deskhand.recorder.messages import ImagePart, Message, message
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.episode import desktop_spec
from deskhand.store.frames import Frames
from deskhand.tasks.task import Rect, Task, seed_for
from deskhand.trainer.supervised import SupervisedRow
from deskhand.types import PreparedImage

FIRST_SEED = 400_000_000
"""First seed of screens in the training split; demonstrations use seeds from 3e8."""
ARRANGEMENTS = 50
"""Screenshots for each start of a task's programs."""
MIDDLE = 0.4
"""Share of a target's width and height, around its center, that trained clicks hit."""


@dataclass(frozen=True)
class StoredScreen:
    """A screenshot in the run's frames, with (question, box of the answer's click in pixels)."""

    family: str
    sha256: str
    width: int
    height: int
    questions: tuple[tuple[str, Rect], ...]


def plan_screens(suite: Suite, count: int, first_seed: int) -> list[tuple[Task, int]]:
    """Return tasks to start and the number of arrangements of each, for at least `count` screens in equal shares of the
    training families that have questions about their screens; empty if none has.

    A start of `n` arrangements uses the training seeds from its task's on.
    """
    able = [name for name in suite.train_tasks if suite.make(name, seed_for("train", first_seed)).grounding_targets]
    if not able:
        return []
    each = min(ARRANGEMENTS, -(-count // len(able)))
    return [
        (suite.make(able[k % len(able)], seed_for("train", first_seed + each * (k // len(able)))), each)
        for k in range(-(-count // each))
    ]


async def collect_screens(
    pool: DesktopPoolProtocol, plan: Sequence[tuple[Task, int]], frames: Frames, size: int
) -> list[StoredScreen]:
    """Return the screens of a plan in its order, collected with `size` concurrent desktops.

    Raises `InfrastructureError` if more than 5 % of the starts failed; the screens of fewer are left out.
    """
    found: dict[int, list[StoredScreen]] = {}
    failures: list[InfrastructureError] = []
    waiting = iter(enumerate(plan))

    async def work() -> None:
        for index, (task, arrangements) in waiting:
            try:
                lease = await pool.lease(desktop_spec(task))
                try:
                    found[index] = [each async for each in _arrange(lease.desktop, task, arrangements, frames)]
                finally:
                    await pool.release(lease)
            except InfrastructureError as error:
                failures.append(error)
                if len(failures) > len(plan) // 20:
                    return

    async with asyncio.TaskGroup() as group:
        for _ in range(size):
            group.create_task(work())
    if len(failures) > len(plan) // 20:
        raise failures[0]
    return [screen for index in sorted(found) for screen in found[index]]


async def _arrange(desktop: StageableDesktop, task: Task, count: int, frames: Frames) -> AsyncIterator[StoredScreen]:
    assert task.grounding_targets is not None
    await task.setup(desktop)
    for k in range(count if task.shuffle_windows is not None else 1):
        if k and task.shuffle_windows is not None:
            await task.shuffle_windows(desktop, task.seed + k)
        frame = await desktop.observe()
        questions = tuple(await task.grounding_targets(desktop))
        width, height = frame.size
        if questions:
            await asyncio.to_thread(frames.put, frame.sha256, frame.rgb())
            yield StoredScreen(task.family, frame.sha256, width, height, questions)


def write_screens(path: Path, screens: Sequence[StoredScreen]) -> None:
    """Write the screens as JSON lines, complete or not at all."""
    partial = path.with_suffix(".part")
    with partial.open("w", encoding="utf-8") as file:
        for one in screens:
            questions = [(text, box.left, box.top, box.right, box.bottom) for text, box in one.questions]
            file.write(json.dumps([one.family, one.sha256, one.width, one.height, questions]) + "\n")
    partial.rename(path)


def read_screens(path: Path) -> list[StoredScreen]:
    """Read what `write_screens` wrote."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        family, sha256, width, height, questions = json.loads(line)
        asked = tuple((text, Rect(*box)) for text, *box in questions)
        found.append(StoredScreen(family, sha256, width, height, asked))
    return found


def screen_rows(
    screen: StoredScreen,
    agent: DesktopAgent,
    renderer: ChatRenderer,
    images: Mapping[str, PreparedImage],
    *,
    max_questions: int,
    grid: int,
    seed: int,
) -> tuple[SupervisedRow, ...]:
    """Return one row per question, as the first turn of the agent: at most `max_questions`, about different boxes.

    The answer is a click at a random place in the middle of the box; `grid` is the spacing of its coordinates in
    thousandths of the screen.
    """
    rng = random.Random(f"{seed}:{screen.sha256}")
    by_box: dict[Rect, list[str]] = {}
    for question, box in screen.questions:
        by_box.setdefault(box, []).append(question)
    chosen = rng.sample(sorted(by_box, key=lambda box: (box.left, box.top, box.right, box.bottom)), len(by_box))
    view = agent.view_of(screen.width, screen.height)
    rows = []
    for box in chosen[:max_questions]:
        click = Click(point_in(box, screen.width, screen.height, grid, rng))
        asked = agent.messages(rng.choice(by_box[box]), [Turn("")], view, 0)
        prompt = renderer.render(tuple(_message(one, screen.sha256) for one in asked), images)
        reply = (*renderer.encode_text(agent.action_format.emit([click], view)), renderer.end_id)
        target = (*[False] * len(prompt.token_ids), *[True] * len(reply))
        rows.append(SupervisedRow((*prompt.token_ids, *reply), target, prompt.spans))
    return tuple(rows)


def _message(one: Mapping[str, Any], sha256: str) -> Message:
    parts = one["content"]
    if not isinstance(parts, str):
        parts = [part["text"] if part["type"] == "text" else ImagePart(sha256) for part in parts]
    return message(one["role"], parts)


def point_in(box: Rect, width: int, height: int, grid: int, rng: random.Random, spread: float = MIDDLE) -> Point:
    """Return a random point in the middle of a box on a screen of `width` x `height`, on the grid.

    `spread` is the share of the box's width and height that the point may take.
    """
    x, y = box.center
    jitter_x, jitter_y = (box.right - box.left) * spread / 2, (box.bottom - box.top) * spread / 2
    x_px, y_px = x + rng.uniform(-jitter_x, jitter_x) + 0.5, y + rng.uniform(-jitter_y, jitter_y) + 0.5
    return Point(_on_axis(x_px * 1000 / width, grid), _on_axis(y_px * 1000 / height, grid), REL_1000)


def _on_axis(value: float, grid: int) -> int:
    return max(0, min(1000, round(value / grid) * grid))


def on_grid(task: Task, grid: int) -> Task:
    """Return the task with an oracle whose points are multiples of `grid` thousandths of the screen."""

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in task.oracle(desktop):
            yield [_rounded(op, grid) for op in ops]

    return task if grid == 1 else replace(task, oracle=oracle)


def _rounded(op: Op, grid: int) -> Op:
    assert is_dataclass(op)
    changes = {}
    for field in fields(op):
        value = getattr(op, field.name)
        if isinstance(value, Point):
            changes[field.name] = _rounded_point(value, grid)
        elif isinstance(value, tuple) and value and all(isinstance(each, Point) for each in value):
            changes[field.name] = tuple(_rounded_point(each, grid) for each in value)
    return replace(op, **changes)


def _rounded_point(point: Point, grid: int) -> Point:
    found = in_space(point, REL_1000)
    return Point(_on_axis(found.x, grid), _on_axis(found.y, grid), REL_1000)
