"""Ways to do the families of `web`: the keyboard alone, another order of the fields, detours and typed addresses.

All are renderings of the walk that a family names (`suites.web.scenario.Goal`), which says what is pressed and filled
in. The oracle renders it by the pointer.
"""

from __future__ import annotations

from itertools import groupby

from benchmarks.ways.person import Act, Person, Ways, rest, types
from deskhand.actions.ops import Answer, Fail, Op, Type
from deskhand.tasks.suites.web import FAMILIES, scenario
from deskhand.tasks.suites.web.scenario import VARIANTS, Goal
from deskhand.tasks.task import Task

MAX_TABS = 80


def by_pointer(step: scenario.Act) -> Act:
    """Do a step of a walk by the pointer."""

    async def act(person: Person) -> None:
        async for ops in scenario.play(person.desktop, step):
            await person.do(*ops)
        await person.still()

    return act


def by_keys(step: scenario.Act) -> Act:
    """Do a step by the keyboard: Tab to the link, button or field, then press it or type."""

    async def act(person: Person) -> None:
        if step.kind == "see":
            return
        for _ in range(MAX_TABS):
            if (await scenario.locate(person.desktop, step))["focused"]:
                break
            await person.key("Tab")
        if step.kind == "fill":
            await person.key("ctrl+a")
        if step.text:
            await person.do(Type(step.text))
        else:
            await person.key("space" if step.kind == "tick" else "Return")
        await person.still(0.3)

    return act


def ends(goal: Goal) -> list[Act]:
    """Say how it ends, if the goal is an answer or that it cannot be done."""
    last: Op | None = Fail() if goal.infeasible else Answer(f"{goal.answer}.") if goal.answer else None

    async def act(person: Person) -> None:
        if last is not None:
            await person.do(last)

    return [rest, act]


def backwards(walk: tuple[scenario.Act, ...]) -> list[scenario.Act]:
    """Fill in the fields of each form in the opposite order; the other steps stay where they are."""
    runs = [(is_link, list(steps)) for is_link, steps in groupby(walk, lambda step: step.kind in ("go", "see"))]
    return [step for is_link, steps in runs for step in (steps if is_link else reversed(steps))]


def ways_of(task: Task) -> Ways:
    goal = VARIANTS[task.family](task.seed)[1]
    walk, end = [by_pointer(step) for step in goal.walk], ends(goal)
    address: list[Act] = ["ctrl+l", types("127.0.0.1:8080/booking/bookings\n"), rest]
    found: Ways = {
        "by the keyboard": [*(by_keys(step) for step in goal.walk), *end],
        "after a detour by the address, and back": [*address, "alt+Left", rest, *walk, *end],
        "after a reload and another tab": ["F5", rest, "ctrl+t", rest, "ctrl+w", rest, *walk, *end],
    }
    if (order := backwards(goal.walk)) != list(goal.walk):
        found["the fields in the opposite order"] = [*map(by_pointer, order), *end]
    return found


WAYS = dict.fromkeys(FAMILIES, ways_of)
