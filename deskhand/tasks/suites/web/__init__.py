"""Suite `web`: six small web applications in Chromium, served by the host. Used through `suites.family_registry`.

`web_app` and `apps` are the applications, `server` is the process that serves them, `sites` is the host's side of it,
`scenario` is the base of the families, and `families` has one module per application, four of families that need
several applications (`across`, `errands`, `plans`, `chores`), and two of what they share (`forms`, `items`).
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator

from deskhand.actions.ops import Answer, Fail, Op, Wait
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError
from deskhand.tasks.suites.web import sites
from deskhand.tasks.suites.web.families import (
    across,
    booking,
    calendar,
    chores,
    errands,
    files,
    issues,
    mail,
    plans,
    shop,
)
from deskhand.tasks.suites.web.scenario import PREFIX, SUITE, VARIANTS, State, changed
from deskhand.tasks.suites.web.server import APPS
from deskhand.tasks.task import Family, Task

__all__ = ["FAMILIES", "PREFIX", "SUITE", "action_paths", "make_task", "near_miss"]
FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (mail, shop, calendar, issues, booking, files, across, errands, plans, chores)
    for family in vars(module).values()
    if isinstance(family, Family)
}


def action_paths() -> list[str]:
    """Return the paths to which the forms of all applications are sent."""
    return [path for app in APPS.values() for path in app.action_paths]


async def near_miss(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
    """Yield a step after each state, and with each answer, that is nearly right; then restore the state.

    Of an infeasible task it is declared after something was removed.
    """
    scenario, goal = VARIANTS[task.family](task.seed)
    removals = [functools.partial(_remove_one, app=app) for app in scenario.state] if goal.infeasible else []
    for change in (*goal.wrong.values(), *removals):
        await sites.write_state(desktop, changed(scenario.state, change))
        yield [Fail("it cannot be done") if goal.infeasible else Wait(0.1)]
    await sites.write_state(desktop, scenario.state)
    for answer in goal.wrong_answers:
        yield [Answer(answer)]


def _remove_one(state: State, app: str) -> None:
    """Remove an item of an application."""
    next(filter(None, state[app].values())).pop()


def make_task(family: str, seed: int) -> Task:
    """Return the variant of a seed. Raises `ConfigError` for an unknown family."""
    name = family if family.startswith(PREFIX) else f"{PREFIX}{family}"
    if name not in FAMILIES:
        raise ConfigError(f"unknown family {family!r} in suite 'web'; families: {', '.join(FAMILIES)}")
    return FAMILIES[name].generate(seed)
