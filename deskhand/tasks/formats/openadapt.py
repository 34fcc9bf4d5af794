"""OpenAdapt's YAML task files.

Start with `load`. Problems include what OpenAdapt's own reader silently misreads: it uses `name` as the instruction,
ignores `exists`, rejects a file for one unknown key of a check, and gives a file without an id a new one at every
start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deskhand.tasks.formats.located_yaml import (
    Keys,
    LocatedDocument,
    Problem,
    StrictModel,
    load_yaml,
    unknown_keys,
    validate,
)

CHECK_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "command": (("run", "expect"), ("match",)),
    "file": (("path",), ("exists", "contains")),
    "screenshot": (("description",), ()),
    "python": (("code",), ()),
}
"""Required and optional keys by kind of check."""
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
    document = load_yaml(path)
    task = validate(document, OpenAdaptTask)
    return LoadedOpenAdapt(path, task, tuple(_problems(document, task)))


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
