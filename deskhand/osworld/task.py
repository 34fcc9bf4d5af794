"""OSWorld tasks as Deskhand tasks; the files are used unchanged.

Examples:

    task = load_task(Path("evaluation_examples/examples/chrome/....json"))

runs like a task of a suite: with any agent, runner and desktop.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from deskhand.actions.ops import Fail, Op
from deskhand.desktop.base import DesktopSpec, StageableDesktop
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.osworld.clients import SavedClient, client_for
from deskhand.osworld.official_evaluators import OfficialEvaluators
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
from deskhand.tasks.formats.located_yaml import require_valid
from deskhand.tasks.formats.osworld import JsonTask
from deskhand.tasks.task import CheckResult, Task

SUITE = "osworld"
SCREEN = (1920, 1080)
MAX_STEPS = 15
CHECK_TIMEOUT_S = 300.0
"""Postconfig steps sleep, start programs and wait for windows."""
Official = Callable[[], OfficialEvaluators | None]


class OsworldRunner:
    """The `SetupRunner` of each desktop on which `task` is being played. Desktops may run concurrently."""

    def __init__(self, task: JsonTask, spec: DesktopSpec, cache: FileCache | None, evaluators: Official) -> None:
        self._task, self._spec, self._cache, self._evaluators = task, spec, cache, evaluators
        self._runners: weakref.WeakKeyDictionary[StageableDesktop, SetupRunner] = weakref.WeakKeyDictionary()

    async def set_up(self, desktop: StageableDesktop) -> None:
        """Run the set-up steps on a fresh desktop. Raises `InfrastructureError`."""
        if (before := self._runners.pop(desktop, None)) is not None:
            await before.client.close()
        setup_runner = self._runners[desktop] = SetupRunner(client_for(desktop, self._spec), self._cache)
        await setup_runner.set_up(self._task.config)
        await desktop.observe()

    async def verdict(self, desktop: StageableDesktop, *, failed: bool = False, at_start: bool = False) -> Verdict:
        """Score the end state, or the start state (`score_task`). Raises `EvaluatorError` and
        `InfrastructureError`."""
        if isinstance(desktop, EndState):
            setup_runner = SetupRunner(SavedClient(desktop, self._spec), self._cache)
        else:
            setup_runner = self._runners.get(desktop)
        if setup_runner is None:
            raise InfrastructureError("the task was not set up on this desktop; call set_up first")
        scoring = {"failed": failed, "at_start": at_start, "evaluators": self._evaluators()}
        return await score_task(self._task, setup_runner, **scoring)


def load_task(path: Path, **settings: object) -> Task:
    """Load a task file; `settings` are those of `task_of`.

    Raises `TaskFileError`, or `ConfigError` if the task cannot be scored here.
    """
    loaded = osworld.load(path)
    require_valid(loaded.problems)
    return task_of(loaded.task, domain=path.parent.name, **settings)  # pyright: ignore[reportArgumentType]


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
    """Convert a task. `size` is the screen size in pixels; `accessibility` None enables the tree if scoring reads it.

    Raises `ConfigError` if a step, getter or metric is unavailable: the task would never be scored.
    """
    if reasons := unsupported_reasons(task, with_official=evaluators() is not None):
        raise ConfigError(f"OSWorld task {task.id}: {'; '.join(reasons)}")
    needs_tree = needs_accessibility(task) if accessibility is None else accessibility
    spec = DesktopSpec("plain", *size, accessibility=needs_tree)
    runner = OsworldRunner(task, spec, cache, evaluators)
    no_oracle = "" if task.infeasible else "OSWorld task files contain no solution"

    async def check(desktop: StageableDesktop) -> CheckResult:
        return (await runner.verdict(desktop)).check

    async def start_check(desktop: StageableDesktop) -> CheckResult:
        return (await runner.verdict(desktop, at_start=True)).check

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        if no_oracle:
            raise ConfigError(f"OSWorld task {task.id}: {no_oracle}")
        yield [Fail()]

    return Task(
        id=f"{SUITE}/{domain or 'task'}/{task.id}",
        family=f"{SUITE}/{domain or 'task'}/{task.id}",
        suite=SUITE,
        seed=0,
        instruction=task.instruction,
        width=size[0],
        height=size[1],
        max_steps=max_steps,
        setup=runner.set_up,
        check=check,
        start_check=start_check,
        oracle=oracle,
        difficulty="medium",
        accessibility=needs_tree,
        infeasible_reward=float(task.infeasible),
        check_timeout_s=CHECK_TIMEOUT_S,
        oracle_unavailable=no_oracle,
        metadata={"related_apps": task.related_apps},
    )
