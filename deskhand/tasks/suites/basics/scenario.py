"""Base class of the suite's scenarios: one variant of a task, with the `Task` that is built from it.

A family's module subclasses `Scenario`, or uses it with closures, and lists its `Family` objects in `FAMILIES`:

  def open_page(seed: int) -> Task:
      scenario = WebPageScenario("page_open", seed)
      ...
      return scenario.build_task("Open the page", oracle=oracle, clauses=clauses, max_steps=4)
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from deskhand.actions.ops import Op
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.clauses import combine_clauses
from deskhand.tasks.task import CheckResult, Milestone, Rect, Task

Clauses = Callable[[StageableDesktop], Awaitable[list[Finding]]]
Oracle = Callable[[StageableDesktop], AsyncIterator[list[Op]]]
THEMES = ("plain", "dark", "green", "sand")


class Scenario:
    """Content of one task variant: a pure function of family and seed.

    Subclasses draw it from `rng` in `__init__`, stage it in `setup` and set the screen size.
    """

    width, height = 512, 384
    theme = "plain"

    def __init__(self, family: str, seed: int) -> None:
        self.family, self.seed = family, seed
        self.rng = random.Random(f"{family}:{seed}")

    async def setup(self, desktop: StageableDesktop) -> None:
        """Stage a desktop that was just reset."""
        raise NotImplementedError

    def build_task(self, instruction: str, *, clauses: Clauses | None = None, **fields: Any) -> Task:
        """Return the task. `fields` are those of `Task`; `clauses` replaces `check`: all of them must hold."""
        if clauses is not None:

            async def check(desktop: StageableDesktop) -> CheckResult:
                return combine_clauses(*await clauses(desktop))

            fields["check"] = check
        defaults = {
            "setup": self.setup,
            "first_click_targets": _no_targets,
            "theme": self.theme,
            "difficulty": "medium",
        }
        return Task(
            id=f"basics/{self.family}/{self.seed}",
            family=self.family,
            suite="basics",
            seed=self.seed,
            instruction=instruction,
            width=self.width,
            height=self.height,
            **(defaults | fields),
        )


async def _no_targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
    return None, []


def milestone(
    name: str, weight: float, value: Callable[[StageableDesktop], Awaitable[float]], *, untrusted_source: bool = False
) -> Milestone:
    """Return a milestone whose value (a bool, or a share) is `value(desktop)`."""

    async def check(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(float(await value(desktop)), name, untrusted_source=untrusted_source)

    return Milestone(name, weight, check)


def dialog_milestone(name: str, weight: float, title: str) -> Milestone:
    """Return a milestone that a window with this part of a title is open."""

    async def is_open(desktop: StageableDesktop) -> bool:
        return any(title in window.title for window in await desktop.windows())

    return milestone(name, weight, is_open, untrusted_source=True)
