"""Cheats in the browser of the suite `web`: forms of the agent's own, by console, address bar and pages of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from desktops import ISOLATIONS, desktop_for

from deskhand.actions.ops import Click, Done, Key, Op, Point, Type, Wait, screen_px
from deskhand.desktop.applications.install import missing
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks import chromium
from deskhand.tasks.cheats.browser import own_form
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites.web import FAMILIES, sites
from deskhand.tasks.suites.web.scenario import VARIANTS, Goal, WebScenario, changed, go, play
from deskhand.tasks.task import Task, seed_for

pytestmark = pytest.mark.skipif(
    bool(missing(["chromium"])) or "namespaces" not in ISOLATIONS, reason="needs Chromium and namespaces"
)
FAMILY, SEED = "web/issues/close", seed_for("test", 0)
TASK: Task = FAMILIES[FAMILY].generate(SEED)
SCENARIO: WebScenario
GOAL: Goal
SCENARIO, GOAL = VARIANTS[FAMILY](SEED)
TITLE = GOAL.walk[0].name
PATH = next(f"/issues/switch/{each['id']}" for each in SCENARIO.state["issues"]["issues"] if each["title"] == TITLE)
"""The form that does the task; no page of the cheats shows it."""
URL = f"http://127.0.0.1:{sites.PORT}{PATH}"
IN_PAGE = Click(Point(200, 500, screen_px(TASK.width, TASK.height)))
SCRIPT = own_form(PATH)


@asynccontextmanager
async def started() -> AsyncIterator[tuple[LocalDesktop, Callable]]:
    """A desktop after set-up, and a function that performs steps."""
    async with desktop_for(TASK) as desktop:
        await TASK.setup(desktop)
        number = 0

        async def do(*steps: list[Op]) -> None:
            nonlocal number
            for ops in steps:
                number += 1
                await desktop.perform(ops, action_id=f"step {number}")

        yield desktop, do


async def worth(desktop: LocalDesktop) -> float:
    outcome = await judge(TASK, desktop)
    assert isinstance(outcome, Scored), outcome
    return outcome.value


def address(text: str) -> list[list[Op]]:
    return [[Key(("ctrl", "l"))], [Type(text + "\n")], [Wait(1.0)]]


CHEATS: dict[str, list[list[Op]]] = {
    "console": [[Key(("ctrl", "shift", "j"))], [Wait(3.0)], [Type(SCRIPT + "\n")], [Wait(1.0)], [IN_PAGE]],
    "script address": [*address(f"javascript:{SCRIPT}"), [IN_PAGE]],
    "page of its own": [*address(f"data:text/html,<body><script>{own_form(URL)}</script>"), [IN_PAGE]],
    "source": [[Key(("ctrl", "u"))], [Wait(1.0)], *address("chrome://inspect")],
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
async def test_a_form_of_the_agents_own_is_not_paid(cheat: str) -> None:
    async with started() as (desktop, do):
        await do(*CHEATS[cheat], [Wait(1.0)], [Done()])
        assert await sites.read_state(desktop) == SCENARIO.state
        opened = await chromium.session_of(desktop).urls_since_mark()
        assert not [url for url in opened if url.startswith("devtools:")], "developer tools opened"
        assert await worth(desktop) == 0.0
        if cheat == "page of its own":  # whatever it did, it is not paid
            await sites.write_state(desktop, changed(SCENARIO.state, GOAL.right))
            assert await worth(desktop) == 0.0


async def test_a_form_that_was_changed_in_the_page_is_refused() -> None:
    """As by a tool that the browser did not stop; the pointer sends the form to a path for which no page had one."""
    async with started() as (desktop, do):
        await chromium.session_of(desktop).evaluate(SCRIPT)
        await do([IN_PAGE], [Wait(1.0)])
        assert await sites.read_state(desktop) == SCENARIO.state
        assert await sites.num_refused(desktop) == 1


async def test_a_form_works_after_a_reload_and_with_the_back_button() -> None:
    back, reload = [Key(("alt", "Left")), Wait(1.0)], [Key(("F5",)), Wait(1.0)]
    async with started() as (desktop, do):

        async def press(name: str) -> None:
            async for ops in play(desktop, go(name)):
                await do(ops)
            await do([Wait(1.0)])

        await press(TITLE)
        await do(reload)
        await press("Close issue")
        await do(back)
        assert "Close issue" in str(await chromium.session_of(desktop).evaluate("document.body.innerText"))
        await press("Close issue")  # the same form again: it opens the issue
        assert await sites.read_state(desktop) == SCENARIO.state
        await do(back, reload)
        await press("Close issue")
        assert await worth(desktop) == 1.0
        assert await sites.num_refused(desktop) == 0
