"""Judging while programs still work: a slow machine does not change the score, and no program delays it for long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from desktops import desktop_for

from deskhand.tasks import judge as judging
from deskhand.tasks.guest_files import read_text
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites.basics import make_task
from deskhand.tasks.task import CheckResult, Task

COMPUTES = "i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); done; {then}"


async def written(desktop) -> CheckResult:
    return CheckResult(float(await read_text(desktop, "answer.txt") == "42\n"))


def task_with(check) -> Task:
    return replace(make_task("dialog_choice", 0), check=check, settle_grace_s=0.05, milestones=())


async def test_a_program_that_still_computes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits for the CPU on a busy machine: a second program writes the answer of the first."""
    monkeypatch.setattr(judging, "MAX_BUSY_S", 60.0)
    task = task_with(written)
    async with desktop_for(task) as desktop:
        script = COMPUTES.format(rounds=2_000_000, then="sh -c 'echo 42 > answer.txt'")
        await desktop.launch(["sh", "-c", script])
        assert await judge(task, desktop) == Scored(1.0, {"end_state": 1.0})


async def test_a_program_that_never_stops_is_judged_as_it_is() -> None:
    """It is no outage and no reason to wait: the state is worth what it is worth then."""
    task = task_with(written)
    async with desktop_for(task) as desktop:
        await desktop.launch(["sh", "-c", "while :; do :; done"])
        assert await judge(task, desktop) == Scored(0.0, {"end_state": 0.0})
