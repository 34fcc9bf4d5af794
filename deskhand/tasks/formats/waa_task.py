"""Build a `Task` from a Windows Agent Arena file; the benchmark's evaluate server sets it up and judges it.

Start with `task_of`. Infeasible tasks are rejected, because the server does not receive the agent's answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from deskhand.actions.ops import Op
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError
from deskhand.tasks.formats.osworld import Loaded, dump
from deskhand.tasks.formats.waa import WindowsTask
from deskhand.tasks.outcome import Finding
from deskhand.tasks.task import CheckResult, Rect, Task

SUITE = "waa"
DEFAULT_MAX_STEPS = 15
NO_ORACLE = "Windows Agent Arena files have no oracle"


class TaskEvaluator(Protocol):
    """Sets up and judges a task (`desktop.remote.waa_server.WaaEvaluatorClient`)."""

    async def setup(self, config: list[dict[str, Any]]) -> None: ...

    async def evaluate(self, task: dict[str, Any]) -> tuple[float, str]: ...


EvaluatorFactory = Callable[[StageableDesktop], TaskEvaluator]
"""Returns the evaluator of a desktop's machine."""


def task_of(
    loaded: Loaded[WindowsTask],
    evaluator: EvaluatorFactory,
    width: int,
    height: int,
    max_steps: int = DEFAULT_MAX_STEPS,
) -> Task:
    """Return the task of a loaded file, for a screen size. Raises `ConfigError` if the task is infeasible.

    It is named after its file, as in the benchmark's lists: two files have the same `id`.
    """
    if loaded.task.infeasible:
        raise ConfigError(f"{loaded.path}: infeasible tasks are not supported; exclude it from the suite")
    document = dump(loaded.task)

    async def setup(desktop: StageableDesktop) -> None:
        await evaluator(desktop).setup(document.get("config", []))

    async def check(desktop: StageableDesktop) -> CheckResult:
        score, why = await evaluator(desktop).evaluate(document)
        func = document["evaluator"]["func"]
        clause = " ".join(["the evaluate server:", *([func] if isinstance(func, str) else func)])
        expected = str(document["evaluator"].get("expected", ""))
        return CheckResult(score, why, untrusted_source=True, findings=(Finding(clause, score, why, expected),))

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        raise ConfigError(f"{loaded.path}: {NO_ORACLE}")
        yield []

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        return None, []

    return Task(
        id=f"{SUITE}/{loaded.path.stem}/0",
        family=loaded.path.stem,
        suite=SUITE,
        seed=0,
        instruction=loaded.task.instruction,
        width=width,
        height=height,
        max_steps=max_steps,
        setup=setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        difficulty="medium",
        oracle_unavailable=NO_ORACLE,
    )
