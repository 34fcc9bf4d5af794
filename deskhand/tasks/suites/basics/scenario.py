"""Base class of the suite's scenarios, one variant of a task each, and what their `Task`s are built from.

Clauses of a check report what was read and what was expected; an end state scores 1 if all hold, else 0.

A module subclasses `Scenario` and decorates one function per family:

  @scenario_family(WebPageScenario, "page_open", "easy", "open a page", abilities=("browse pages",))
  def open_page(scenario: WebPageScenario) -> Task:
      ...
      return scenario.build_task("Open the page", oracle=oracle, clauses=clauses, max_steps=4)
"""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

from deskhand.actions.ops import Op
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.abilities import Ability
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.layout import scatter
from deskhand.tasks.task import (
    CheckResult,
    Difficulty,
    ExampleEndStates,
    Family,
    FileContents,
    HoldsOut,
    Milestone,
    Rect,
    Task,
    named_family,
)

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
    settle_grace_s: float | None = None
    """See `Task.settle_grace_s`."""
    target = ""
    """Name of the box of a correct first click; empty if no click is needed."""

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
        return boxes.pop(self.target) if self.target else None, list(boxes.values())

    def build_task(self, instruction: str, *, clauses: Clauses | None = None, **fields: Any) -> Task:
        """Return the task. `fields` are those of `Task`; `clauses` replaces `check`: all of them must hold."""
        if clauses is not None:

            async def check(desktop: StageableDesktop) -> CheckResult:
                return combine_clauses(*await clauses(desktop))

            fields["check"] = check
        names = ("setup", "first_click_targets", "theme", "shuffle_windows", "settle_grace_s")
        defaults: dict[str, Any] = {name: getattr(self, name, None) for name in names}
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
    scenario: type[AnyScenario],
    name: str,
    difficulty: Difficulty,
    summary: str,
    *more_applications: str,
    abilities: tuple[Ability, ...],
    holds_out: HoldsOut | None = None,
) -> Callable[[Callable[[AnyScenario], Task]], Family]:
    """Return a decorator that makes a family of a function from `scenario(name, seed)` to a task.

    `abilities` are those of `tasks.abilities`; `holds_out`: see `tasks.task.task_family`.
    """
    applications = (*scenario.applications, *more_applications)

    def make(build: Callable[[AnyScenario], Task]) -> Family:
        made = named_family(
            name, applications, difficulty, "basics", summary, lambda seed: build(scenario(name, seed)), holds_out
        )
        return replace(made, abilities=abilities)

    return make


def milestone(
    name: str, weight: float, value: Callable[[StageableDesktop], Awaitable[float]], *, untrusted_source: bool = False
) -> Milestone:
    """Return a milestone whose value (a bool, or a share) is `value(desktop)`."""

    async def check(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(float(await value(desktop)), name, untrusted_source=untrusted_source)

    return Milestone(name, weight, check)


def title_milestone(name: str, weight: float, title: str) -> Milestone:
    """Return a milestone that a window with this part of a title is open. Guests choose titles: it is untrusted."""

    async def is_open(desktop: StageableDesktop) -> bool:
        return any(title in window.title for window in await desktop.windows())

    return milestone(name, weight, is_open, untrusted_source=True)


def clause(name: str, read: Any, expected: Any) -> Finding:
    """Return a clause that holds if the two are equal."""
    return Finding(name, float(read == expected), repr(read), repr(expected))


def same_files(name: str, read: Mapping[str, Any], expected: Mapping[str, Any]) -> Finding:
    """Return a clause that holds if exactly these files have these contents; it reports those that differ."""
    paths = sorted(read.keys() | expected.keys())
    wrong = [path for path in paths if not (path in read and path in expected and read[path] == expected[path])]
    if not wrong:
        return Finding(name, 1.0, f"{len(read)} files as expected", f"{len(expected)} files")
    return Finding(name, 0.0, _describe(read, wrong), _describe(expected, wrong))


def _describe(files: Mapping[str, Any], paths: Iterable[str]) -> str:
    return "; ".join(f"{path}: {_text(files[path]) if path in files else 'missing'}" for path in paths)


def _text(content: Any) -> str:
    return repr(content.decode("utf-8", errors="replace") if isinstance(content, bytes) else content)


def combine_clauses(*findings: Finding, untrusted_source: bool = False) -> CheckResult:
    """Return the check that all clauses hold."""
    wrong = [finding for finding in findings if finding.value < 1.0]
    detail = "; ".join(f"{finding.clause}: {finding.read}, not {finding.expected}" for finding in wrong)
    return CheckResult(float(not wrong), detail or "as expected", untrusted_source, findings)


def forged_files(end_states: Callable[[], ExampleEndStates]) -> dict[str, Callable[[], bytes]]:
    """Return the files of the right end state, which are forged if another program writes them."""
    return {path: functools.partial(bytes, data) for path, data in (end_states().positive or {}).items()}


def near_misses(right: FileContents, target: str, **negatives: FileContents) -> ExampleEndStates:
    """Return end states around `right`: the file `target` without its last letter, under another name, and `negatives`.

    Underscores in the names of `negatives` become spaces.
    """
    path = PurePosixPath(target)
    renamed = {str(path.with_stem(f"{path.stem}2")): right[target]}
    return ExampleEndStates(
        {
            "the last letter is missing": {**right, target: right[target].rstrip(b"\n")[:-1]},
            "it has another name": renamed | {name: data for name, data in right.items() if name != target},
            **{name.replace("_", " "): files for name, files in negatives.items()},
        },
        right,
    )
