"""Build a `Task` from an OpenAdapt task file.

Start with `load_task`. Commands run on the machine. Milestones have equal weights; `evaluate` is the end state,
combined by `combine` (default: "and"). A check that cannot be judged here (a screen description, Python code) raises
`ConfigError` at load time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from deskhand.actions.ops import Op
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks import subprocess_call
from deskhand.tasks.checks.base import quoted
from deskhand.tasks.formats.openadapt import LoadedOpenAdapt, OpenAdaptCheck, load
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import MAX_TEXT, Finding
from deskhand.tasks.task import CheckFunction, CheckResult, Milestone, Rect, Task

SUITE = "openadapt"
FUZZY_THRESHOLD = 0.8
COMMAND_TIMEOUT_S = 20.0
DEFAULT_MAX_STEPS = 15
NO_ORACLE = "OpenAdapt files have no oracle"


def load_task(path: Path, width: int, height: int) -> Task:
    """Return the task of a file, for a screen size. Raises `TaskFileError` or `ConfigError`."""
    return task_of(load(path), width, height)


def task_of(loaded: LoadedOpenAdapt, width: int, height: int) -> Task:
    """Return the task of a loaded file."""
    file, where = loaded.task, loaded.path
    ends = [_check_of(check, where) for check in file.evaluate or ()]
    milestones = [_check_of(check, where) for check in file.milestones or ()]
    if not ends and not milestones:
        raise ConfigError(f"{where}: neither evaluate nor milestones is set")
    for step in file.setup or ():
        if not set(step) <= {"execute", "launch", "open", "sleep"}:
            raise ConfigError(f"{where}: setup step must be execute, launch, open or sleep, got {', '.join(step)}")

    async def setup(desktop: StageableDesktop) -> None:
        for step in file.setup or ():
            await _perform(step, desktop)

    async def check(desktop: StageableDesktop) -> CheckResult:
        found = [await each(desktop) for each in ends or milestones]
        values = [each.value for each in found]
        value = max(values) if file.combine == "or" else min(values)
        findings = tuple(finding for each in found for finding in each.findings)
        return CheckResult(
            value, "; ".join(each.detail for each in found), any(each.untrusted_source for each in found), findings
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        raise ConfigError(f"{where}: {NO_ORACLE}")
        yield []

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
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
        max_steps=file.max_steps or DEFAULT_MAX_STEPS,
        setup=setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        milestones=tuple(Milestone(name, 1 / len(names), each) for name, each in zip(names, milestones, strict=True)),
        difficulty="medium",
        oracle_unavailable=NO_ORACLE,
    )


async def _perform(step: dict[str, Any], desktop: Any) -> None:
    ((kind, value),) = step.items()
    if kind == "sleep":
        await asyncio.sleep(float(value))
    elif kind == "execute":
        done = await desktop.shell(str(value), timeout_s=COMMAND_TIMEOUT_S)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace")[-200:]
            raise InfrastructureError(f"setup: {quoted(value)} exited with {done.returncode}: {message}")
    elif kind == "open":
        await desktop.server.open_file(str(value))
    else:
        await desktop.server.launch(str(value), shell=True)


def _check_of(check: OpenAdaptCheck, where: Path) -> CheckFunction:
    if check.check == "command" and check.run is not None and check.expect is not None:
        return lambda desktop: _command(desktop, check.run or "", check.expect or "", check.match or "exact")
    if check.check == "file" and check.path is not None:
        return lambda desktop: _file(desktop, check)
    raise ConfigError(f"{where}: check {check.check} is not supported; use command or file")


async def _command(desktop: Any, command: str, expected: str, match: str) -> CheckResult:
    done = await desktop.shell(command, timeout_s=COMMAND_TIMEOUT_S)
    output, wanted = done.stdout.decode("utf-8", errors="replace").strip(), expected.strip()
    if match == "contains":
        holds = wanted in output
    elif match == "regex":
        holds = await asyncio.to_thread(subprocess_call.matches, wanted, output, whole=False)
    elif match == "fuzzy":
        holds = await asyncio.to_thread(subprocess_call.text_similarity, output, wanted) >= FUZZY_THRESHOLD
    else:
        holds = output == wanted
    finding = Finding(f"output of {quoted(command)}", float(holds), quoted(output), f"{match}: {quoted(wanted)}")
    return CheckResult(
        float(holds), f"{quoted(command)} printed {quoted(output)}", untrusted_source=True, findings=(finding,)
    )


async def _file(desktop: StageableDesktop, check: OpenAdaptCheck) -> CheckResult:
    path = check.path or ""
    data = await read_file(desktop, path)
    if check.exists is False:
        return _file_result(path, data is None, "missing" if data is None else "exists", "missing")
    holds = data is not None and (check.contains is None or check.contains in data.decode("utf-8", errors="replace"))
    read = "missing" if data is None else quoted(data[:MAX_TEXT].decode("utf-8", errors="replace"))
    return _file_result(path, holds, read, "exists" if check.contains is None else f"contains {quoted(check.contains)}")


def _file_result(path: str, holds: bool, read: str, expected: str) -> CheckResult:
    detail = f"{path}: {'as expected' if holds else f'is {read}, expected {expected}'}"
    return CheckResult(
        float(holds), detail, untrusted_source=True, findings=(Finding(path, float(holds), read, expected),)
    )
