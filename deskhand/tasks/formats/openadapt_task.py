"""Makes a `Task` of an OpenAdapt file. Invariant: a command check is what the command says on the machine, by an endpoint that
tells its output; what this cannot judge (a description of the screen, a piece of Python) is refused at once, never a zero.

Milestones count alike and stay reached; `evaluate` is the end state, its checks joined by `combine` ("and" where it is left out).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from deskhand.actions.ops import Op
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks import subprocess_call
from deskhand.tasks.checks.base import UNREADABLE, quoted
from deskhand.tasks.formats.openadapt import LoadedOpenAdapt, OpenAdaptCheck, load
from deskhand.tasks.outcome import MAX_TEXT, Finding
from deskhand.tasks.task import CheckFunction, CheckResult, Milestone, Rect, StagedDesktopLike, Task

SUITE = "openadapt"
FUZZY = 0.8
COMMAND_S = 20.0
SHORTEST_STEPS = 15
NO_ORACLE = "a file of this kind has no solution in it"


def load_task(path: Path, width: int, height: int) -> Task:
    """The task of a file, for screens of this size. Raises `TaskFileError` or `ConfigError`."""
    return task_of(load(path), width, height)


def task_of(loaded: LoadedOpenAdapt, width: int, height: int) -> Task:
    """The task of a file that was read."""
    file, where = loaded.task, loaded.path
    ends = [_check_of(check, where) for check in file.evaluate or ()]
    milestones = [_check_of(check, where) for check in file.milestones or ()]
    if not ends and not milestones:
        raise ConfigError(f"{where}: neither evaluate nor milestones: nothing is judged")
    for step in file.setup or ():
        if not set(step) <= {"execute", "launch", "open", "sleep"}:
            raise ConfigError(
                f"{where}: set-up step {', '.join(step)} cannot be made here; use execute, launch, open or sleep"
            )

    async def setup(desktop: StagedDesktopLike) -> None:
        for step in file.setup or ():
            await _perform(step, desktop)

    async def check(desktop: StagedDesktopLike) -> CheckResult:
        found = [await each(desktop) for each in ends or milestones]
        values = [each.value for each in found]
        value = max(values) if file.combine == "or" else min(values)
        findings = tuple(finding for each in found for finding in each.findings)
        return CheckResult(
            value, "; ".join(each.detail for each in found), any(each.untrusted_source for each in found), findings
        )

    async def oracle(desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        raise ConfigError(f"{where}: {NO_ORACLE}")
        yield []

    async def targets(desktop: StagedDesktopLike) -> tuple[Rect | None, list[Rect]]:
        return None, []

    names = [milestone.name for milestone in file.milestones or ()]
    return Task(
        id=f"{SUITE}/{loaded.id}/0",
        family=loaded.id,
        suite=SUITE,
        seed=0,
        instruction=loaded.instruction,
        width=width,
        height=height,
        max_steps=file.max_steps or SHORTEST_STEPS,
        setup=setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        milestones=tuple(Milestone(name, 1 / len(names), each) for name, each in zip(names, milestones, strict=True)),
        difficulty="medium",
        oracle_unavailable=NO_ORACLE,
    )


async def _perform(step: dict[str, Any], desktop: StagedDesktopLike) -> None:
    ((kind, value),) = step.items()
    if kind == "sleep":
        await asyncio.sleep(float(value))
    elif kind == "execute":
        done = await desktop.shell(str(value), timeout_s=COMMAND_S)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace")[-200:]
            raise InfrastructureError(f"set-up: {quoted(value)} ended with {done.returncode}: {said}")
    elif kind == "open":
        await desktop.server.open_file(str(value))
    else:
        await desktop.server.launch(str(value), shell=True)


def _check_of(check: OpenAdaptCheck, where: Path) -> CheckFunction:
    if check.check == "command" and check.run is not None and check.expect is not None:
        return lambda desktop: _command(desktop, check.run or "", check.expect or "", check.match or "exact")
    if check.check == "file" and check.path is not None:
        return lambda desktop: _file(desktop, check)
    raise ConfigError(f"{where}: a check by {check.check} cannot be judged here; write it as a command or a file")


async def _command(desktop: StagedDesktopLike, command: str, expected: str, match: str) -> CheckResult:
    done = await desktop.shell(command, timeout_s=COMMAND_S)
    said, wanted = done.stdout.decode("utf-8", errors="replace").strip(), expected.strip()
    if match == "contains":
        holds = wanted in said
    elif match == "regex":
        holds = await asyncio.to_thread(subprocess_call.matches, wanted, said, whole=False)
    elif match == "fuzzy":
        holds = await asyncio.to_thread(subprocess_call.text_similarity, said, wanted) >= FUZZY
    else:
        holds = said == wanted
    finding = Finding(f"what {quoted(command)} says", float(holds), quoted(said), f"{match}: {quoted(wanted)}")
    return CheckResult(
        float(holds), f"{quoted(command)} said {quoted(said)}", untrusted_source=True, findings=(finding,)
    )


async def _file(desktop: StagedDesktopLike, check: OpenAdaptCheck) -> CheckResult:
    path = check.path or ""
    try:
        data: bytes | None = await desktop.pull(path)
    except UNREADABLE:
        data = None
    if check.exists is False:
        return _found(path, data is None, "gone" if data is None else "there", "gone")
    holds = data is not None and (check.contains is None or check.contains in data.decode("utf-8", errors="replace"))
    read = "gone" if data is None else quoted(data[:MAX_TEXT].decode("utf-8", errors="replace"))
    return _found(path, holds, read, "there" if check.contains is None else f"contains {quoted(check.contains)}")


def _found(path: str, holds: bool, read: str, expected: str) -> CheckResult:
    """A fact about a file, as its one clause."""
    told = f"{path}: {'as asked' if holds else 'not as asked'}"
    return CheckResult(
        float(holds), told, untrusted_source=True, findings=(Finding(path, float(holds), read, expected),)
    )
