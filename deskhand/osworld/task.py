"""OSWorld's tasks as tasks of ours. Invariant: the file is used unchanged, and a desktop is judged with what its own set-up left.

    task = load_task(Path("evaluation_examples/examples/chrome/....json"))

runs like a task of a suite: any agent, any runner, on any desktop.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from deskhand.actions.ops import Fail, Op
from deskhand.desktop.base import DesktopSpec, StageableDesktop
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.osworld.end_state_stage import SavedStageRunner
from deskhand.osworld.official_evaluators import OfficialEvaluators
from deskhand.osworld.remote_client import connect_remote
from deskhand.osworld.scoring import (
    Verdict,
    default_official_evaluators,
    needs_accessibility,
    score_task,
    unsupported_reasons,
)
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.tasks.end_state import EndState
from deskhand.tasks.formats import osworld
from deskhand.tasks.formats.file_cache import FileCache
from deskhand.tasks.formats.osworld import JsonTask
from deskhand.tasks.task import CheckResult, Rect, Task

SUITE = "osworld"
SCREEN = (1920, 1080)
MAX_STEPS = 15
CHECK_S = 300.0
"""Steps before judging sleep, start programs and look at windows."""
Official = Callable[[], OfficialEvaluators | None]


class OsworldRunner:
    """The stage of each desktop on which `task` is being played. One task may be played on many desktops at once."""

    def __init__(self, task: JsonTask, template: DesktopSpec, cache: FileCache | None, evaluators: Official) -> None:
        self._task, self._template, self._cache, self._evaluators = task, template, cache, evaluators
        self._of: weakref.WeakKeyDictionary[StageableDesktop, SetupRunner] = weakref.WeakKeyDictionary()

    async def set_up(self, desktop: StageableDesktop) -> None:
        """Carry out the set-up steps on a fresh desktop. Raises `InfrastructureError`."""
        if (before := self._of.pop(desktop, None)) is not None:
            await before.wire.close()
        stage = self._of[desktop] = SetupRunner(connect_remote(desktop, self._template), self._cache)
        await stage.set_up(self._task.config)
        await desktop.observe()

    async def verdict(self, desktop: StageableDesktop, *, failed: bool) -> Verdict:
        """What the end state is worth. Raises `EvaluatorError` and `InfrastructureError`."""
        if isinstance(desktop, EndState):
            stage = SavedStageRunner(desktop, (self._template.width, self._template.height), self._cache)
        else:
            stage = self._of.get(desktop)
        if stage is None:
            raise InfrastructureError("the task was not set up on this desktop")
        return await score_task(self._task, stage, failed=failed, evaluators=self._evaluators())


def load_task(path: Path, **settings: object) -> Task:
    """The task of a file; `settings` are those of `task_of`. Raises `TaskFileError`, and `ConfigError` for one that cannot be
    judged here."""
    return task_of(osworld.load(path).task, domain=path.parent.name, **settings)  # pyright: ignore[reportArgumentType]


def task_of(
    task: JsonTask,
    *,
    domain: str = "",
    size: tuple[int, int] = SCREEN,
    max_steps: int = MAX_STEPS,
    accessibility: bool | None = None,
    cache: FileCache | None = None,
    evaluators: Official = default_official_evaluators,
) -> Task:
    """A `Task` of ours. `size` is that of the screen in pixels; `accessibility` None: where judging needs the tree.

    Raises `ConfigError` when a step, a getter or a metric of it cannot be had here: it would never be scored.
    """
    if against := unsupported_reasons(task, with_official=evaluators() is not None):
        raise ConfigError(f"OSWorld task {task.id}: {'; '.join(against)}")
    telling = needs_accessibility(task) if accessibility is None else accessibility
    template = DesktopSpec("plain", *size, accessibility=telling)
    stages = OsworldRunner(task, template, cache, evaluators)
    no_oracle = "" if task.infeasible else "OSWorld's files have no solution in them"

    async def check(desktop: StageableDesktop) -> CheckResult:
        return (await stages.verdict(desktop, failed=False)).check

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        if no_oracle:
            raise ConfigError(f"OSWorld task {task.id}: {no_oracle}")
        yield [Fail()]

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        return None, []

    return Task(
        id=f"{SUITE}/{domain or 'task'}/{task.id}",
        family=f"{SUITE}/{domain or 'task'}/{task.id}",
        suite=SUITE,
        seed=0,
        instruction=task.instruction,
        width=size[0],
        height=size[1],
        max_steps=max_steps,
        setup=stages.set_up,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        difficulty="medium",
        accessibility=telling,
        infeasible_reward=float(task.infeasible),
        check_timeout_s=CHECK_S,
        oracle_unavailable=no_oracle,
        metadata={"related_apps": task.related_apps},
    )
