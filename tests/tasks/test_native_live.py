"""YAML task files on real desktops: only the oracle solves them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from desktops import desktop_for

from deskhand.actions.ops import Done, Key, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks.family_checks import play
from deskhand.tasks.formats.yaml_task import load_task
from deskhand.tasks.judge import MilestoneTracker, judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import Task

SHOPPING = Path(__file__).parent / "files" / "shopping.yaml"


async def nothing(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
    yield [Done()]


async def unsaved(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
    async for ops in task.oracle(desktop):
        yield [op for op in ops if not isinstance(op, Key)]


async def shouting(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
    async for ops in task.oracle(desktop):
        yield [Type(op.text.upper()) if isinstance(op, Type) else op for op in ops]


async def test_a_native_task_is_played_end_to_end_and_only_its_oracle_solves_it() -> None:
    task = load_task(SHOPPING)
    async with desktop_for(task) as desktop:
        trial = await play(task, desktop)
        parts = {"end_state": 1.0, "milestone: something was added": 1.0, "milestone: pears were added": 1.0}
        assert (trial.baseline, trial.outcome, trial.steps) == (0.0, Scored(1.0, parts), 5)
    for policy, share in [(nothing, 0.0), (unsaved, 0.0), (shouting, 0.2)]:
        async with desktop_for(task) as desktop:
            trial = await play(task, desktop, policy)
            assert (trial.value, trial.milestone_share) == (0.0, pytest.approx(share)), policy


async def test_a_guest_that_damages_the_other_file_does_not_pass() -> None:
    task = load_task(SHOPPING)
    async with desktop_for(task) as desktop:
        await desktop.push("Lists/list.txt", b"2 red apples\n3 green pears")
        await desktop.push("Lists/other.txt", b"stay as you are")
        assert await judge(task, desktop) == Scored(1.0, {"end_state": 1.0})
        await desktop.push("Lists/other.txt", b"")
        assert await judge(task, desktop, grace_s=0) == Scored(0.0, {"end_state": 0.0})
        assert MilestoneTracker(task).reached.keys() == {"something was added", "pears were added"}


async def test_setup_steps_work_and_their_failure_is_an_infrastructure_error(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    (tmp_path / "seed.bin").write_bytes(bytes(range(256)))
    path.write_text(
        "deskhand: 2\nid: setup\ninstruction: Count\nscreen: {width: 256, height: 192}\nlimits: {steps: 4}\n"
        "setup:\n  - write: {path: a/b.bin, copy_of: seed.bin}\n"
        "  - run: {run: [sh, -c, 'wc -c < b.bin > n.txt'], cwd: a}\n"
        "  - wait: 0.05\n"
        "  - launch: {run: [xterm, -e, sh, -c, 'read line; echo $line > $NAME'],\n"
        "             env: {NAME: said.txt}, window: xterm}\n"
        "check:\n  sum:\n    - text: {path: said.txt, lines: [hello]}\n      weight: 3\n"
        "    - command: {run: [cat, a/n.txt], stdout: '255'}\n"
        "oracle:\n  - [click: {at: [20, 20], window: xterm}, type: \"hello\\n\", wait_file: said.txt]\n"
    )  # fmt: skip
    task = load_task(path)
    async with desktop_for(task) as desktop:
        trial = await play(task, desktop)
        assert trial.outcome == Scored(0.75, {"end_state": 0.75}, guest_trusted=True)
        assert await desktop.pull("a/n.txt") == b"256\n"
    path.write_text(path.read_text().replace("wc -c < b.bin", "wc -c < absent"))
    async with desktop_for(task) as desktop:
        with pytest.raises(InfrastructureError, match=r"setup: sh exited with \d: .*absent"):
            await load_task(path).setup(desktop)
