"""What must not pass: the right action with something else broken, the wrong sibling, the look of success without its substance."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from deskhand.actions.ops import Click, Done, Key, Op, Point, Type, Wait, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.embedded.desktop import LocalDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks.judge import MilestoneTracker, judge
from deskhand.tasks.lint import Policy, play
from deskhand.tasks.outcome import Outcome, Scored, Errored
from deskhand.tasks.suites.basics import forms, make_task, reading, shells, terminals
from deskhand.tasks.suites.basics.layout import close_button
from deskhand.tasks.task import StagedDesktopLike, Task


@asynccontextmanager
async def desktop_for(task: Task) -> AsyncIterator[LocalDesktop]:
    desktop = LocalDesktop()
    try:
        await desktop.reset(DesktopSpec(task.theme, task.width, task.height))
        yield desktop
    finally:
        await desktop.close()


async def outcome_of(task: Task, policy: Policy) -> Outcome:
    async with desktop_for(task) as desktop:
        return (await play(task, desktop, policy)).outcome


def edited(change) -> Policy:
    """The oracle with every list of ops passed through `change(index, ops)`; None leaves the step out."""

    async def policy(task: Task, desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        index = 0
        async for ops in task.oracle(desktop):
            changed = change(index, ops)
            if changed is not None:
                yield changed
            index += 1

    return policy


async def value_of(task: Task, policy: Policy) -> float:
    outcome = await outcome_of(task, policy)
    assert isinstance(outcome, Scored), outcome
    return outcome.value


async def test_deleting_every_file_is_not_deleting_the_one() -> None:
    def select_all(index: int, ops: list[Op]) -> list[Op]:
        return [*ops, Key(("ctrl", "a")), Wait(0.5)] if index == 0 else ops

    assert await value_of(make_task("file_delete", 0), edited(select_all)) == 0.0


async def test_copying_is_not_moving() -> None:
    task = make_task("file_move", 1)
    assert await value_of(task, edited(lambda i, ops: [Key(("ctrl", "c"))] if ops == [Key(("ctrl", "x"))] else ops)) == 0.0


@pytest.mark.parametrize("family", ["editor_append", "code_copy"])
async def test_what_was_not_saved_does_not_count(family: str) -> None:
    task = make_task(family, 3)
    assert await value_of(task, edited(lambda i, ops: None if ops == [Key(("ctrl", "s"))] else ops)) == 0.0


async def test_the_line_at_the_beginning_of_the_text_is_not_at_its_end() -> None:
    task = make_task("editor_append", 4)

    def at_the_top(index: int, ops: list[Op]) -> list[Op]:
        return [Key(("ctrl", "Home")), *ops, Type("\n")] if isinstance(ops[0], Type) else ops

    assert await value_of(task, edited(at_the_top)) == 0.0


async def test_the_code_of_another_window_does_not_count() -> None:
    task, scene = make_task("code_copy", 5), reading.CodeCopyScenario(5)
    other = next(code for colour, code in scene.codes.items() if colour != scene.target)
    outcome = await outcome_of(task, edited(lambda i, ops: [Type(other)] if isinstance(ops[0], Type) else ops))
    assert isinstance(outcome, Scored)
    assert outcome.parts == {"end_state": 0.0, "milestone: something was saved": 1.0, "milestone: one of the codes was saved": 1.0}


async def test_a_form_with_more_than_was_asked_does_not_count() -> None:
    seed = next(seed for seed in range(100) if len(forms.FormScenario(seed).values) == 2)
    scene = forms.FormScenario(seed)
    empty = next(field for field in scene.fields if field not in scene.values)

    async def policy(task: Task, desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        spare = (await scene.entries(desktop))[empty].center
        extra: list[Op] = [Click(Point(*spare, screen_px(task.width, task.height))), Type("x")]
        async for ops in task.oracle(desktop):
            yield [*ops, *extra] if isinstance(ops[0], Type) else ops

    assert await value_of(make_task("form_fill", seed), policy) == 0.0


async def test_a_cancelled_form_does_not_count() -> None:
    task = make_task("form_fill", 2)

    async def policy(task: Task, desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        (window,) = await desktop.wait_window("zenity")
        yield [Click(Point(*close_button(window).center, screen_px(task.width, task.height)))]
        yield [Done()]

    assert await value_of(task, policy) == 0.0


async def test_a_right_count_with_a_counted_file_gone_does_not_count() -> None:
    task, scene = make_task("terminal_count", 1), shells.TerminalCountScenario(1)

    def and_remove(index: int, ops: list[Op]) -> list[Op]:
        return [Type(f"{scene.command}; rm {scene.target}\n")] if isinstance(ops[0], Type) else ops

    assert await value_of(task, edited(and_remove)) == 0.0


async def test_a_result_that_is_no_plain_file_scores_zero_and_does_not_break_the_judge() -> None:
    task, scene = make_task("terminal_count", 2), shells.TerminalCountScenario(2)
    result = f"{shells.FOLDER}/{scene.result}"
    async with desktop_for(task) as desktop:
        for name, data in scene.files.items():
            await desktop.push(f"{shells.FOLDER}/{name}", data)
        for command in (
            ["mkdir", result],
            ["ln", "-s", "/etc/passwd", result],
            ["ln", "-s", "nowhere", result],
            ["mkfifo", result],
        ):
            assert (await desktop.run(command)).returncode == 0
            assert await judge(task, desktop, grace_s=0) == Scored(0.0, {"end_state": 0.0}), command
            await desktop.run(["rm", "-rf", result])
        await desktop.push(result, f"{scene.count}\n".encode())
        assert await judge(task, desktop) == Scored(1.0, {"end_state": 1.0})


async def test_an_agent_that_wrecks_what_is_judged_scores_zero_and_is_not_unscored() -> None:
    task, scene = make_task("terminal_run", 0), terminals.TerminalScenario("terminal_run", 0)
    async with desktop_for(task) as desktop:
        for colour in scene.colours:
            await desktop.push(f"{colour}/.keep", b"")
        await desktop.run(["rm", "-rf", scene.target])
        assert await judge(task, desktop, grace_s=0) == Scored(0.0, {"end_state": 0.0})
        await desktop.run(["ln", "-s", "/usr", scene.target])
        assert await judge(task, desktop, grace_s=0) == Scored(0.0, {"end_state": 0.0})


async def test_closing_every_terminal_is_not_closing_the_one() -> None:
    task = make_task("terminal_close", 1)

    async def policy(task: Task, desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        for window in await desktop.windows():
            yield [Click(Point(*close_button(window).center, screen_px(task.width, task.height)))]
        yield [Done()]

    assert await value_of(task, policy) == 0.0


async def test_a_desktop_that_dies_leaves_the_episode_unscored() -> None:
    task = make_task("file_rename", 1)
    async with desktop_for(task) as desktop:
        await task.setup(desktop)
        tracker = MilestoneTracker(task)
        await desktop.close()
        outcome = await judge(task, desktop)
        assert isinstance(outcome, Errored)
        assert outcome.cause == "infrastructure"
        with pytest.raises(InfrastructureError):
            await tracker.after_step(desktop)
