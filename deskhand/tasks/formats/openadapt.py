"""OpenAdapt's YAML task files, and the `Task` of one.

Start with `load` or `load_task`. Problems include what OpenAdapt's own reader silently misreads: it uses `name` as the
instruction, ignores `exists`, rejects a file for one unknown key of a check, and gives a file without an id a new one
at every start. Commands run on the machine. Milestones have equal weights; `evaluate` is the end state, combined by
`combine` (default: "and"). `openadapt_checks` has the kinds `screenshot` and `python`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deskhand.desktop.base import HasShell, StageableDesktop
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks import document_readers
from deskhand.tasks.file_problems import quoted
from deskhand.tasks.formats.located_yaml import (
    Keys,
    LocatedDocument,
    Problem,
    StrictModel,
    load_yaml,
    require_valid,
    unknown_keys,
    validate,
)
from deskhand.tasks.formats.openadapt_checks import python_check, screenshot_check
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import MAX_TEXT, Finding
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.task import CheckFunction, CheckResult, Milestone, Task

SUITE = "openadapt"
FUZZY_THRESHOLD = 0.8
COMMAND_TIMEOUT_S = 20.0
DEFAULT_MAX_STEPS = 15
CHECK_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "command": (("run", "expect"), ("match",)),
    "file": (("path",), ("exists", "contains")),
    "screenshot": (("description",), ()),
    "python": (("code",), ()),
}
"""Required and optional keys by kind of check."""
FileKey = Literal["name", "domain", "instruction", "max_steps", "combine", "setup", "evaluate", "milestones"]
"""Keys of a task file that a data row may have."""
STEP_KEYS = ("execute", "launch", "open", "sleep", "download")


class OpenAdaptCheck(StrictModel):
    check: Literal["command", "file", "screenshot", "python"]
    run: str | None = None
    expect: str | None = None
    match: Literal["exact", "contains", "regex", "fuzzy"] | None = None
    path: str | None = None
    exists: bool | None = None
    contains: str | None = None
    description: str | None = None
    code: str | None = None


class OpenAdaptMilestone(OpenAdaptCheck):
    name: str


class OpenAdaptTask(StrictModel):
    """A task file. Setup steps are kept as written: each has one key, or is a step of Windows Agent Arena."""

    name: str | None = None
    id: str | None = None
    instruction: str | None = None
    domain: str | None = None
    max_steps: int | None = None
    combine: Literal["and", "or"] | None = None
    setup: list[dict[str, Any]] | None = None
    evaluate: list[OpenAdaptCheck] | None = None
    milestones: list[OpenAdaptMilestone] | None = None


@dataclass(frozen=True)
class LoadedOpenAdapt:
    path: Path
    task: OpenAdaptTask
    problems: tuple[Problem, ...]

    @property
    def instruction(self) -> str:
        """The instruction: `instruction`, or what OpenAdapt's reader would use."""
        return self.task.instruction or self.task.name or self.path.stem

    @property
    def id(self) -> str:
        """The file's id, or its name."""
        return self.task.id or self.path.stem


def load(path: Path) -> LoadedOpenAdapt:
    """Load a task file. Raises `TaskFileError` if it is not YAML or a value has the wrong type."""
    return _loaded(path, load_yaml(path))


def load_content(content: dict[str, Any], where: str) -> LoadedOpenAdapt:
    """Load what a task file contains from elsewhere, for example a data row. Raises `TaskFileError`."""
    return _loaded(Path(where), LocatedDocument(where, content, dict, []))


def _loaded(path: Path, document: LocatedDocument) -> LoadedOpenAdapt:
    task = validate(document, OpenAdaptTask)
    return LoadedOpenAdapt(path, task, (*document.problems, *_problems(document, task)))


def dump(task: OpenAdaptTask) -> dict[str, Any]:
    """Return the value that the task was loaded from."""
    return task.model_dump(mode="python", exclude_unset=True)


def _problems(document: LocatedDocument, task: OpenAdaptTask) -> Iterator[Problem]:
    for keys in unknown_keys(task):
        yield document.problem(keys, "unknown key, has no effect")
    if task.instruction is not None:
        yield document.problem(
            ("instruction",), "OpenAdapt's reader ignores this key and uses the name as the instruction", note=True
        )
    elif task.name is None:
        yield document.problem((), "no instruction: the file name is used")
    if task.id is None:
        yield document.problem(
            (), "no id: the file name is used; OpenAdapt's reader generates a new id each time", note=True
        )
    if not task.evaluate and not task.milestones:
        yield document.problem((), "neither evaluate nor milestones is set")
    if task.max_steps is not None and task.max_steps < 1:
        yield document.problem(("max_steps",), f"must be at least 1, got {task.max_steps}")
    for index, step in enumerate(task.setup or ()):
        yield from _step_problems(document, ("setup", index), step)
    for role in ("evaluate", "milestones"):
        for index, check in enumerate(getattr(task, role) or ()):
            yield from _check_problems(document, (role, index), check, milestone=role == "milestones")
    names = [milestone.name for milestone in task.milestones or ()]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield document.problem(("milestones", index, "name"), "another milestone has this name")


def _step_problems(document: LocatedDocument, keys: Keys, step: dict[str, Any]) -> Iterator[Problem]:
    if "type" in step:
        return
    kinds = [key for key in step if key in STEP_KEYS]
    if len(step) != 1 or not kinds:
        yield document.problem(keys, f"must have one of {', '.join(STEP_KEYS)}, or a type, got {', '.join(step)}")
        return
    value = step[kinds[0]]
    if kinds[0] == "sleep":
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            yield document.problem((*keys, "sleep"), f"must be a number of seconds, got {value!r}")
    elif kinds[0] == "download":
        if not isinstance(value, dict) or set(value) != {"url", "dest"}:
            yield document.problem((*keys, "download"), "must have url and dest")
        else:
            yield document.problem((*keys, "download"), "OpenAdapt's live adapter ignores this form", note=True)
    elif not isinstance(value, str):
        yield document.problem((*keys, kinds[0]), f"must be text, got {value!r}")


def _check_problems(
    document: LocatedDocument, keys: Keys, check: OpenAdaptCheck, *, milestone: bool
) -> Iterator[Problem]:
    needed, allowed = CHECK_KEYS[check.check]
    own = {"check", "name", *needed, *allowed}
    for name in needed:
        if getattr(check, name) is None:
            yield document.problem((*keys, name), f"check {check.check} needs this key")
    for name in type(check).model_fields:
        if name not in own and getattr(check, name) is not None:
            yield document.problem((*keys, name), f"check {check.check} does not use this key")
    if check.check == "file" and check.exists is False:
        if check.contains is not None:
            yield document.problem((*keys, "contains"), "has no effect with exists: false")
        yield document.problem(
            (*keys, "exists"), "OpenAdapt's reader ignores this key and requires the file", note=True
        )
    if check.check == "python":
        yield document.problem((*keys, "code"), "OpenAdapt's reader turns this into invalid Python", note=True)
    if milestone and check.check in ("file", "python"):
        yield document.problem(
            (*keys, "check"), f"OpenAdapt's reader never reaches a milestone with check {check.check}", note=True
        )


def load_task(path: Path, width: int, height: int, *, allow_python: bool = False) -> Task:
    """Return the task of a file, for a screen size; see `task_of`."""
    return task_of(load(path), width, height, allow_python=allow_python)


def task_of(loaded: LoadedOpenAdapt, width: int, height: int, *, allow_python: bool = False) -> Task:
    """Return the task of a loaded file, for a screen size. Raises `TaskFileError` or `ConfigError`.

    `allow_python`: run the code of its `python` checks (`openadapt_checks`).
    """
    require_valid(loaded.problems)
    file, where = loaded.task, loaded.path
    ends = [_check_of(check, where, allow_python) for check in file.evaluate or ()]
    milestones = [_check_of(check, where, allow_python) for check in file.milestones or ()]
    for step in file.setup or ():
        if not set(step) <= {"execute", "launch", "open", "sleep"}:
            raise ConfigError(f"{where}: setup step must be execute, launch, open or sleep, got {', '.join(step)}")

    async def setup(desktop: StageableDesktop) -> None:
        if any(each.check == "command" for each in (*(file.evaluate or ()), *(file.milestones or ()))):
            _with_shell(desktop)
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

    names = [milestone.name for milestone in file.milestones or ()]
    return Task(
        id=f"{SUITE}/{loaded.id}/0",
        family=loaded.id,
        suite=SUITE,
        instruction=loaded.instruction,
        width=width,
        height=height,
        max_steps=file.max_steps or DEFAULT_MAX_STEPS,
        setup=setup,
        check=check,
        milestones=tuple(Milestone(name, 1 / len(names), each) for name, each in zip(names, milestones, strict=True)),
        difficulty="medium",
        oracle_unavailable="OpenAdapt files have no oracle",
    )


def _with_shell(desktop: Any) -> HasShell:
    if not isinstance(desktop, HasShell):
        raise ConfigError(
            f"OpenAdapt's steps and checks need a shell, and {type(desktop).__name__} has none; use desktop.backend "
            "local, server, osworld or waa"
        )
    return desktop


async def _perform(step: dict[str, Any], desktop: Any) -> None:
    ((kind, value),) = step.items()
    if kind == "sleep":
        await asyncio.sleep(float(value))
    elif kind == "execute":
        done = await _with_shell(desktop).shell(str(value), timeout_s=COMMAND_TIMEOUT_S)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace")[-200:]
            raise InfrastructureError(f"setup: {quoted(value)} exited with {done.returncode}: {message}")
    elif kind == "open":
        await _with_shell(desktop).open_file(str(value))
    else:
        await _with_shell(desktop).launch_shell(str(value))


def _check_of(check: OpenAdaptCheck, where: Path, allow_python: bool) -> CheckFunction:
    if check.check == "command" and check.run is not None and check.expect is not None:
        return lambda desktop: _command(desktop, check.run or "", check.expect or "", check.match or "exact")
    if check.check == "file" and check.path is not None:
        return lambda desktop: _file(desktop, check)
    if check.check == "screenshot" and check.description is not None:
        return screenshot_check(check.description, where)
    if check.check == "python" and check.code is not None:
        return python_check(check.code, where, allowed=allow_python)
    raise ConfigError(f"{where}: check {check.check} needs {', '.join(CHECK_KEYS[check.check][0])}")


async def _command(desktop: Any, command: str, expected: str, match: str) -> CheckResult:
    done = await _with_shell(desktop).shell(command, timeout_s=COMMAND_TIMEOUT_S)
    output, wanted = done.stdout.decode("utf-8", errors="replace").strip(), expected.strip()
    if match == "contains":
        holds = wanted in output
    elif match == "regex":
        holds = await _holds(document_readers.regex_matches, done.stdout, wanted)
    elif match == "fuzzy":
        holds = await _holds(document_readers.is_similar_text, done.stdout, wanted, FUZZY_THRESHOLD)
    else:
        holds = output == wanted
    finding = Finding(f"output of {quoted(command)}", float(holds), quoted(output), f"{match}: {quoted(wanted)}")
    return CheckResult(
        float(holds), f"{quoted(command)} printed {quoted(output)}", untrusted_source=True, findings=(finding,)
    )


async def _holds(function: Callable[..., bool], output: bytes, *arguments: Any) -> bool:
    try:
        return await read_in_subprocess(function, output, *arguments)
    except document_readers.InvalidDocument:
        return False


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
