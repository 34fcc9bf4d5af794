"""Makes a `Task` of a Windows Agent Arena file, set up and judged by that benchmark's own evaluate server. Invariant: what the
server fails at is unscored; a task whose answer is the agent's last word (infeasible ones) is refused: the server is not told it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from deskhand.actions.ops import Op
from deskhand.errors import ConfigError
from deskhand.tasks.formats.osworld import Loaded, dump
from deskhand.tasks.formats.waa import WindowsTask
from deskhand.tasks.outcome import Finding
from deskhand.tasks.task import CheckResult, Rect, StagedDesktopLike, Task

SUITE = "waa"
STEPS = 15
NO_ORACLE = "a file of this kind has no solution in it"


class TaskEvaluator(Protocol):
    """What sets up and judges (`desktop.remote.waa_server.WaaEvaluator`)."""

    async def setup(self, config: list[dict[str, Any]]) -> None: ...

    async def evaluate(self, task: dict[str, Any]) -> tuple[float, str]: ...


EvaluatorFactory = Callable[[StagedDesktopLike], TaskEvaluator]
"""The one of the machine that a task is played on."""


def task_of(
    loaded: Loaded[WindowsTask], evaluator: EvaluatorFactory, width: int, height: int, max_steps: int = STEPS
) -> Task:
    """The task of a file that was read, for screens of this size. Raises `ConfigError`.

    It is named after its file, as in the benchmark's own lists: two of its files carry one `id`.
    """
    if loaded.task.infeasible:
        raise ConfigError(
            f"{loaded.path}: this task is solved by saying that it cannot be done; leave it out of training"
        )
    document = dump(loaded.task)

    async def setup(desktop: StagedDesktopLike) -> None:
        await evaluator(desktop).setup(document.get("config", []))

    async def check(desktop: StagedDesktopLike) -> CheckResult:
        score, why = await evaluator(desktop).evaluate(document)
        func = document["evaluator"]["func"]
        clause = " ".join(["the evaluate server:", *([func] if isinstance(func, str) else func)])
        expected = str(document["evaluator"].get("expected", ""))
        return CheckResult(score, why, untrusted_source=True, findings=(Finding(clause, score, why, expected),))

    async def oracle(desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        raise ConfigError(f"{loaded.path}: {NO_ORACLE}")
        yield []

    async def targets(desktop: StagedDesktopLike) -> tuple[Rect | None, list[Rect]]:
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
