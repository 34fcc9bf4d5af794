"""Base class of the suite's scenarios: one variant of a task, with the `Task` that is built from it.

A module subclasses `Scenario` and decorates one function per family:

  @scenario_family(WebPageScenario, "page_open", "easy", "open a page")
  def open_page(scenario: WebPageScenario) -> Task:
      ...
      return scenario.build_task("Open the page", oracle=oracle, clauses=clauses, max_steps=4)
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from deskhand.actions.ops import Op
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.clauses import combine_clauses
from deskhand.tasks.suites.basics.layout import scatter
from deskhand.tasks.task import CheckResult, Difficulty, Family, Milestone, Rect, Task, named_family

Clauses = Callable[[StageableDesktop], Awaitable[list[Finding]]]
Oracle = Callable[[StageableDesktop], AsyncIterator[list[Op]]]
THEMES = ("plain", "dark", "green", "sand")


class Scenario:
    """Content of one task variant: a pure function of family and seed.

    Subclasses draw it from `rng` in `__init__`, stage it in `setup` and set the screen size. With movable windows they
    have the method `shuffle_windows` of `Task`.
    """

    width, height = 512, 384
    theme = "plain"
    applications: tuple[str, ...] = ()
    """Debian packages that the tasks need."""
    target = ""
    """Name of the box of a correct first click."""

    def __init__(self, family: str, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"{family}:{seed}")

    async def setup(self, desktop: StageableDesktop) -> None:
        """Stage a desktop that was just reset."""
        raise NotImplementedError

    async def boxes(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return what a first click could hit in the start state, by name; empty if no click is needed."""
        return {}

    async def first_click_targets(self, desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        boxes = await self.boxes(desktop)
        return boxes.pop(self.target, None), list(boxes.values())

    def build_task(self, instruction: str, *, clauses: Clauses | None = None, **fields: Any) -> Task:
        """Return the task. `fields` are those of `Task`; `clauses` replaces `check`: all of them must hold."""
        if clauses is not None:

            async def check(desktop: StageableDesktop) -> CheckResult:
                return combine_clauses(*await clauses(desktop))

            fields["check"] = check
        names = ("setup", "first_click_targets", "theme", "shuffle_windows")
        defaults = {name: getattr(self, name, None) for name in names}
        return Task(instruction=instruction, width=self.width, height=self.height, **(defaults | fields))


class SingleWindowScenario(Scenario):
    """A scenario with one window, of the class `window_class`, at a random place."""

    window_class: str
    place_seed: int

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        (window,) = await desktop.wait_window(self.window_class)
        ((x, y),) = scatter(random.Random(seed), [(window.width, window.height)], self.width, self.height)
        await desktop.place_window(window, x, y)


AnyScenario = TypeVar("AnyScenario", bound=Scenario)


def scenario_family(
    scenario: type[AnyScenario], name: str, difficulty: Difficulty, summary: str, *more_applications: str
) -> Callable[[Callable[[AnyScenario], Task]], Family]:
    """Return a decorator that makes a family of a function from `scenario(name, seed)` to a task."""
    applications = (*scenario.applications, *more_applications)

    def make(build: Callable[[AnyScenario], Task]) -> Family:
        return named_family(name, applications, difficulty, "basics", summary, lambda seed: build(scenario(name, seed)))

    return make


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
