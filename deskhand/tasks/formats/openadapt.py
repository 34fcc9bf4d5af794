"""OpenAdapt's task files in YAML: set-up, checks, milestones and how they are combined. Invariant: a file is never skipped: what is
wrong with it, and what its own reader would silently misread, is reported with line and key, and its value is kept whole.

Their reader takes `name` for the instruction, ignores `exists`, refuses a file for one unknown key of a check, and gives a file
without an id a new one at every start.
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
    validated,
)

CHECK_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "command": (("run", "expect"), ("match",)),
    "file": (("path",), ("exists", "contains")),
    "screenshot": (("description",), ()),
    "python": (("code",), ()),
}
"""Keys that a kind of check needs, and those that it may have."""
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
    """One file. Set-up steps are kept as they are written: each has one key, or is a step of Windows Agent Arena."""

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
        """What the agent is told: `instruction` where it is given, else what their reader tells it."""
        return self.task.instruction or self.task.name or self.path.stem

    @property
    def id(self) -> str:
        """The file's id, or its name, which stays the same."""
        return self.task.id or self.path.stem


def load(path: Path) -> LoadedOpenAdapt:
    """Load one file. Raises `TaskFileError` when it is no YAML or a value is of the wrong kind."""
    document = load_yaml(path)
    task = validated(document, OpenAdaptTask)
    return LoadedOpenAdapt(path, task, tuple(_problems(document, task)))


def dump(task: OpenAdaptTask) -> dict[str, Any]:
    """The value that the task was loaded from."""
    return task.model_dump(mode="python", exclude_unset=True)


def _problems(document: LocatedDocument, task: OpenAdaptTask) -> Iterator[Problem]:
    for keys in unknown_keys(task):
        yield document.problem(keys, "this key is not known; it has no effect")
    if task.instruction is not None:
        yield document.problem(
            ("instruction",), "their reader does not know this key and tells the agent the name", note=True
        )
    elif task.name is None:
        yield document.problem((), "no instruction: the name of the file is all that the agent is told")
    if task.id is None:
        yield document.problem(
            (), "no id: their reader makes a new one each time; the file's name is taken here", note=True
        )
    if not task.evaluate and not task.milestones:
        yield document.problem((), "neither evaluate nor milestones: nothing is judged")
    if task.max_steps is not None and task.max_steps < 1:
        yield document.problem(("max_steps",), f"{task.max_steps} steps")
    for index, step in enumerate(task.setup or ()):
        yield from _step_problems(document, ("setup", index), step)
    for role in ("evaluate", "milestones"):
        for index, check in enumerate(getattr(task, role) or ()):
            yield from _check_problems(document, (role, index), check, milestone=role == "milestones")
    names = [milestone.name for milestone in task.milestones or ()]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield document.problem(("milestones", index, "name"), "two milestones have this name")


def _step_problems(document: LocatedDocument, keys: Keys, step: dict[str, Any]) -> Iterator[Problem]:
    if "type" in step:
        return
    kinds = [key for key in step if key in STEP_KEYS]
    if len(step) != 1 or not kinds:
        yield document.problem(
            keys, f"a step has one of {', '.join(STEP_KEYS)}, or a type; this one has {', '.join(step)}"
        )
        return
    value = step[kinds[0]]
    if kinds[0] == "sleep":
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            yield document.problem((*keys, "sleep"), f"a number of seconds, not {value!r}")
    elif kinds[0] == "download":
        if not isinstance(value, dict) or set(value) != {"url", "dest"}:
            yield document.problem((*keys, "download"), "give url and dest")
        else:
            yield document.problem(
                (*keys, "download"), "their live adapter expects another form and leaves this out", note=True
            )
    elif not isinstance(value, str):
        yield document.problem((*keys, kinds[0]), f"a text, not {value!r}")


def _check_problems(
    document: LocatedDocument, keys: Keys, check: OpenAdaptCheck, *, milestone: bool
) -> Iterator[Problem]:
    needed, allowed = CHECK_KEYS[check.check]
    own = {"check", "name", *needed, *allowed}
    for name in needed:
        if getattr(check, name) is None:
            yield document.problem((*keys, name), f"a check by {check.check} needs this key")
    for name in type(check).model_fields:
        if name not in own and getattr(check, name) is not None:
            yield document.problem((*keys, name), f"a check by {check.check} does not read this key")
    if check.check == "file" and check.exists is False:
        if check.contains is not None:
            yield document.problem((*keys, "contains"), "a file that is to be gone contains nothing")
        yield document.problem(
            (*keys, "exists"), "their reader ignores this and asks that the file is there", note=True
        )
    if check.check == "python":
        yield document.problem((*keys, "code"), "their reader makes a program of this that is no Python", note=True)
    if milestone and check.check in ("file", "python"):
        yield document.problem((*keys, "check"), f"their reader never reaches a milestone by {check.check}", note=True)
