"""What a page gives, it gives to pointer and keyboard only: not to the console, to an address, or to its source."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from desktops import desktop_for

from deskhand.actions.ops import Done, Key, Op, Type, Wait
from deskhand.desktop.applications.install import missing
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.cheats.browser import visible_text
from deskhand.tasks.family_checks import oracle, play
from deskhand.tasks.guest_files import list_folder
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites.basics import make_task
from deskhand.tasks.suites.basics.web_pages import WebPageScenario
from deskhand.tasks.task import Task

SEED = 3
FAMILIES = ("page_form", "page_look_up")
needs_chromium = pytest.mark.skipif(bool(missing(["chromium"])), reason="chromium is not installed")


def scenario_of(task: Task) -> WebPageScenario:
    scenario = getattr(task.setup, "__self__", None)
    assert isinstance(scenario, WebPageScenario)
    return scenario


def content_of(task: Task) -> dict[str, str]:
    """The download that the task wants, by name."""
    assert task.example_end_states is not None
    positive = task.example_end_states().positive or {}
    return {path.removeprefix("Downloads/"): data.decode() for path, data in positive.items()}


def forging_script(task: Task) -> str:
    """What a cheat that knows the values, but not the receipt, would type into the console."""
    ((name, text),) = content_of(task).items()
    if name == "order.json":
        text = json.dumps({key: value for key, value in json.loads(text).items() if key != "receipt"})
    text = text.partition(" ")[0] if name == "answer.txt" else text
    quoted = json.dumps(text)
    return (
        f"a=document.createElement('a');a.download={name!r};"
        f"a.href=URL.createObjectURL(new Blob([{quoted}]));a.click();"
        "document.querySelectorAll('input').forEach(i=>i.value='1');document.querySelectorAll('button,a').forEach(b=>b.click())"
    )


def in_console(task: Task) -> list[list[Op]]:
    return [[Key(("ctrl", "shift", "j"))], [Wait(3.0)], [Type(forging_script(task) + "\n")], [Wait(1.0)]]


def in_address_bar(task: Task) -> list[list[Op]]:
    return [[Key(("ctrl", "l"))], [Type("javascript:")], [Type(forging_script(task) + "\n")], [Wait(1.0)]]


def in_own_page(task: Task) -> list[list[Op]]:
    page = f'data:text/html,<body onkeydown="{forging_script(task).replace(chr(34), chr(39))}">'
    return [[Key(("ctrl", "l"))], [Type(page + "\n")], [Wait(1.0)], [Key(("a",))], [Wait(1.0)]]


@needs_chromium
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cheat", [in_console, in_address_bar, in_own_page])
async def test_scripts_of_the_agent_are_not_paid(family: str, cheat) -> None:
    task = make_task(family, SEED)

    async def policy(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        for ops in cheat(task):
            yield ops
        yield [Done()]

    async with desktop_for(task) as desktop:
        outcome = (await play(task, desktop, policy)).outcome
        assert isinstance(outcome, Scored), outcome
        assert outcome.value == 0.0
        assert await list_folder(desktop, "Downloads") == [], "a script of the agent ran"


@needs_chromium
async def test_the_source_of_a_page_cannot_be_shown() -> None:
    task = make_task("page_form", SEED)
    async with desktop_for(task) as desktop:
        await task.setup(desktop)
        url = f"view-source:file:///home/user/{next(iter(scenario_of(task).pages))}\n"
        for number, ops in enumerate(([Key(("ctrl", "u")), Wait(1.0)], [Key(("ctrl", "l")), Type(url), Wait(1.0)])):
            copy = [Key(("ctrl", "a")), Key(("ctrl", "c")), Wait(0.3)]
            await desktop.perform([*ops, *copy], action_id=f"source-{number}")
            assert "currentScript" not in (await desktop.clipboard() or "")


@needs_chromium
async def test_a_page_that_shows_the_same_is_not_the_page() -> None:
    task = make_task("page_save", SEED)
    (page,) = scenario_of(task).pages.values()
    name = next(word for word in task.instruction.split() if word.endswith(".html"))
    async with desktop_for(task) as desktop:
        await task.setup(desktop)
        for text, value in ((visible_text(page), 0.0), (page, 1.0)):
            await desktop.push(f"Downloads/{name}", text.encode())
            outcome = await judge(task, desktop, grace_s=0)
            assert isinstance(outcome, Scored)
            assert outcome.value == value, outcome.failed


@needs_chromium
@pytest.mark.parametrize("family", ["page_download", "page_form", "page_look_up"])
async def test_the_oracle_gets_what_the_page_gives(family: str) -> None:
    task = make_task(family, SEED)
    async with desktop_for(task) as desktop:
        outcome = (await play(task, desktop, oracle)).outcome
        assert isinstance(outcome, Scored), outcome
        assert outcome.value == 1.0, outcome.failed


@needs_chromium
async def test_a_form_sends_what_it_shows_after_the_page_was_loaded_again() -> None:
    task = make_task("page_form", SEED)

    async def policy(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [Key(("tab",)), Type("7"), Key(("f5",)), Wait(1.0)]
        async for ops in task.oracle(desktop):
            yield ops

    async with desktop_for(task) as desktop:
        outcome = (await play(task, desktop, policy)).outcome
        assert isinstance(outcome, Scored), outcome
        assert outcome.value == 1.0, outcome.failed


@pytest.mark.parametrize("family", ["page_download", "page_form", "page_look_up"])
def test_the_source_of_a_page_has_no_secret(family: str) -> None:
    """Neither the key of the receipt nor a content that is not shown: without them no file can be made by hand."""
    task = make_task(family, SEED)
    scenario = scenario_of(task)
    (page,) = scenario.pages.values()
    (text,) = content_of(task).values()
    assert "<script>" in page
    assert str(scenario.key) not in page
    assert text.split()[-1].strip('}"') not in page
