"""Deskhand's own task files, in YAML. Invariant: an unknown key and an impossible value are errors that name file, key and line; a
file that loads is a whole `Task`.

This module is the schema; `native_task` makes a `Task` of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict, StrictInt, field_validator, model_validator

from deskhand.tasks.checks.app_settings import BrowserCheck, SettingsCheck
from deskhand.tasks.checks.base import CheckModel, FileCheckProtocol, GuestPath, PathBeside
from deskhand.tasks.checks.command import CommandCheck
from deskhand.tasks.checks.database import SqliteCheck
from deskhand.tasks.checks.desktop_state import ProcessCheck, WindowCheck
from deskhand.tasks.checks.files import CsvCheck, FileCheck, JsonCheck, TextCheck
from deskhand.tasks.checks.office_documents import DocumentCheck, SheetCheck
from deskhand.tasks.checks.reference_file import ImageCheck, PythonCheck, ReferenceFileCheck
from deskhand.tasks.checks.vlm_judge import VlmJudgeCheck
from deskhand.tasks.formats.located_yaml import (
    Keys,
    LocatedDocument,
    Problem,
    TaskFileError,
    load_yaml,
    validated,
)
from deskhand.tasks.task import Difficulty

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Seconds = Annotated[float, Field(gt=0, le=600)]


def _one_line(text: str) -> str:
    if not text.strip() or "\n" in text.strip():
        raise ValueError("give one line of text")
    return text.strip()


OneLine = Annotated[str, AfterValidator(_one_line)]
Pixels = Annotated[tuple[StrictInt, StrictInt], Strict(False)]
Words = Annotated[list[str], Field(min_length=1)]


class OneKeyModel(CheckModel):
    """A mapping with one key, which says what it is."""

    @model_validator(mode="after")
    def _one(self) -> OneKeyModel:
        given = self.model_fields_set - self._beside()
        if len(given) != 1 or getattr(self, next(iter(given))) is None:
            names = [
                field.alias or name for name, field in type(self).model_fields.items() if name not in self._beside()
            ]
            raise ValueError(f"give exactly one of {', '.join(names)}")
        return self

    @classmethod
    def _beside(cls) -> frozenset[str]:
        """Keys that may stand beside the one."""
        return frozenset()

    @property
    def chosen(self) -> tuple[str, Any]:
        (name,) = self.model_fields_set - self._beside()
        return name, getattr(self, name)


class WriteStep(CheckModel):
    """A file of the guest: its text, or a copy of a file that lies beside the task file."""

    path: GuestPath
    text: str | None = None
    copy_of: PathBeside | None = None

    @model_validator(mode="after")
    def _either(self) -> WriteStep:
        if (self.text is None) == (self.copy_of is None):
            raise ValueError("give either text or copy_of")
        return self


class LaunchStep(CheckModel):
    """A program that goes on running; with `window`, its window is waited for."""

    run: Words
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    window: str | None = None


class RunStep(CheckModel):
    """A command that is waited for and must end with 0."""

    run: Words
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    timeout_s: Seconds = 30.0


class WaitWindowStep(CheckModel):
    """`window` is a piece of a title or of a class, in any case."""

    window: str
    count: int = Field(default=1, ge=1)
    timeout_s: Seconds = 20.0


class PlaceWindowStep(CheckModel):
    """Where a window's client area is put, in pixels."""

    window: str
    at: Pixels
    size: Pixels | None = None


class SetupStep(OneKeyModel):
    write: WriteStep | None = None
    launch: LaunchStep | None = None
    run: RunStep | None = None
    wait_window: WaitWindowStep | None = None
    place: PlaceWindowStep | None = None
    wait: Seconds | None = None


class CheckNode(OneKeyModel):
    """`all` is worth what its worst part is, `any` its best, `sum` the mean of its parts by their weights."""

    all: list[CheckNode] | None = Field(default=None, min_length=1)
    any: list[CheckNode] | None = Field(default=None, min_length=1)
    sum: list[CheckNode] | None = Field(default=None, min_length=1)
    file: FileCheck | None = None
    text: TextCheck | None = None
    json_: JsonCheck | None = Field(default=None, alias="json")
    csv: CsvCheck | None = None
    sheet: SheetCheck | None = None
    document: DocumentCheck | None = None
    sqlite: SqliteCheck | None = None
    command: CommandCheck | None = None
    looks: VlmJudgeCheck | None = None
    settings: SettingsCheck | None = None
    browser: BrowserCheck | None = None
    window: WindowCheck | None = None
    process: ProcessCheck | None = None
    image: ImageCheck | None = None
    python: PythonCheck | None = None
    weight: float | None = Field(default=None, gt=0)

    @classmethod
    def _beside(cls) -> frozenset[str]:
        return frozenset({"weight"})

    @field_validator("all", "any")
    @classmethod
    def _unweighted(cls, parts: list[CheckNode] | None) -> list[CheckNode] | None:
        if any(part.weight is not None for part in parts or ()):
            raise ValueError("weight has a meaning only for the parts of a sum")
        return parts

    @property
    def leaf(self) -> FileCheckProtocol | ReferenceFileCheck | None:
        found = self.chosen[1]
        return None if isinstance(found, list) else found

    def leaves(self, keys: Keys) -> Iterator[tuple[Keys, FileCheckProtocol | ReferenceFileCheck]]:
        """The facts in it, with their places; `keys` are its own."""
        name, found = self.chosen
        name = type(self).model_fields[name].alias or name
        if isinstance(found, list):
            for index, part in enumerate(found):
                yield from part.leaves((*keys, name, index))
        else:
            yield (*keys, name), found


class MilestoneNode(CheckModel):
    """`after` names milestones above, which must have been reached before this one counts."""

    name: OneLine
    weight: float = Field(gt=0, le=1)
    after: list[str] = Field(default_factory=list)
    check: CheckNode


class WindowPoint(CheckModel):
    """A place in pixels: of the screen, or of the client area of a window (negative: from its right or lower edge)."""

    at: Pixels
    window: str | None = None


class ClickNode(WindowPoint):
    button: Literal["left", "middle", "right"] = "left"
    count: int = Field(default=1, ge=1, le=3)


class ScrollNode(WindowPoint):
    dx: int = 0
    dy: int = 0


class OracleOp(OneKeyModel):
    """One op, or something that the oracle waits for."""

    click: ClickNode | None = None
    move: WindowPoint | None = None
    drag: list[WindowPoint] | None = Field(default=None, min_length=2)
    scroll: ScrollNode | None = None
    type: str | None = None
    key: str | None = Field(default=None, min_length=1)
    """Keys of one chord with + between them, as in ctrl+s."""
    wait: Seconds | None = None
    wait_window: WaitWindowStep | None = None
    wait_file: GuestPath | None = None


class ScreenSpec(CheckModel):
    width: int = Field(ge=64, le=7680)
    height: int = Field(ge=48, le=4320)


class TaskLimits(CheckModel):
    """The most that is allowed. Where one of the seconds but `late_s` runs out, the episode has no score."""

    steps: int = Field(ge=1, le=10_000)
    check_s: Seconds | None = None
    """Seconds of one judging; None: the judge's own limit."""
    step_s: Seconds | None = None
    """Of performing one step."""
    episode_s: float | None = Field(default=None, gt=0, le=86_400)
    """Of an episode, from its reset to its score."""
    late_s: float | None = Field(default=None, ge=0, le=60)
    """Within which the check may come true after the end, where a program writes late."""


class NativeTask(CheckModel):
    """A task file. `deskhand` is the version of the schema."""

    deskhand: Literal[1]
    id: str
    instruction: OneLine
    tier: Difficulty = "medium"
    screen: ScreenSpec = ScreenSpec(width=1280, height=720)
    template: str = "plain"
    programs: list[str] = Field(default_factory=list)
    """Programs that must be installed."""
    setup: list[SetupStep] = Field(default_factory=list)
    check: CheckNode
    milestones: list[MilestoneNode] = Field(default_factory=list)
    limits: TaskLimits
    network: list[str] = Field(default_factory=list)
    """Hosts that the guest may reach. Embedded desktops reach none, so no host can be named."""
    format_penalty: float = Field(default=0.0, ge=0, le=1)
    step_cost: float = Field(default=0.0, ge=0, le=1)
    oracle: list[list[OracleOp]] | None = Field(default=None, min_length=1)
    """A solution as lists of ops, one list a step; being done is said at the end by itself."""

    @field_validator("id")
    @classmethod
    def _named(cls, name: str) -> str:
        if not _WORD.fullmatch(name):
            raise ValueError("give a name of letters, digits, '.', '_' and '-'")
        return name

    @field_validator("network")
    @classmethod
    def _offline(cls, hosts: list[str]) -> list[str]:
        if hosts:
            raise ValueError(
                "desktops have no network; serve what the task needs inside the guest and leave this empty"
            )
        return hosts


def load(path: Path) -> NativeTask:
    """Load a task file. Raises `TaskFileError` with everything that is wrong with it."""
    document = load_yaml(path)
    task = validated(document, NativeTask)
    problems = list(_problems(document, task, path.parent))
    if problems:
        raise TaskFileError(problems)
    return task


def is_native(document: LocatedDocument) -> bool:
    return isinstance(document.value, dict) and "deskhand" in document.value


def oracle_steps(task: NativeTask) -> int:
    """How many steps the oracle takes, with the last, which says that it is done. What it waits for parts a list of ops in two."""
    count = 1
    for ops in task.oracle or ():
        waits = [op.wait_window is not None or op.wait_file is not None for op in ops]
        count += sum(not waiting and (index == 0 or waits[index - 1]) for index, waiting in enumerate(waits))
    return count


def _problems(document: LocatedDocument, task: NativeTask, folder: Path) -> Iterator[Problem]:
    """What no single value shows."""
    for index, step in enumerate(task.setup):
        if step.write is not None and step.write.copy_of is not None and not (folder / step.write.copy_of).is_file():
            yield document.problem(
                ("setup", index, "write", "copy_of"), f"there is no file {folder / step.write.copy_of}"
            )
        if step.place is not None and (wrong := _off_screen(step.place.at, task.screen)):
            yield document.problem(("setup", index, "place", "at"), wrong)
    nodes: list[tuple[Keys, CheckNode]] = [(("check",), task.check)]
    nodes += [(("milestones", index, "check"), milestone.check) for index, milestone in enumerate(task.milestones)]
    for keys, leaf in (found for place, node in nodes for found in node.leaves(place)):
        if (
            isinstance(leaf, ReferenceFileCheck)
            and (name := leaf.needs()) is not None
            and not (folder / name).is_file()
        ):
            yield document.problem(keys, f"there is no file {folder / name}")
    names: list[str] = []
    for index, milestone in enumerate(task.milestones):
        if milestone.name in names:
            yield document.problem(("milestones", index, "name"), "two milestones have this name")
        for name in milestone.after:
            if name not in names:
                yield document.problem(("milestones", index, "after"), f"no milestone above has the name {name!r}")
        names.append(milestone.name)
    total = sum(milestone.weight for milestone in task.milestones)
    if total > 1 + 1e-9:
        yield document.problem(("milestones",), f"the weights sum to {total:g}, more than 1")
    for number, ops in enumerate(task.oracle or ()):
        for place, op in enumerate(ops):
            for spot in op.drag or [spot for spot in (op.click, op.move, op.scroll) if spot is not None]:
                if spot.window is None and (wrong := _off_screen(spot.at, task.screen)):
                    yield document.problem(("oracle", number, place), wrong)
    if task.oracle is not None and oracle_steps(task) > task.limits.steps:
        yield document.problem(
            ("limits", "steps"), f"the oracle takes {oracle_steps(task)} steps, the last to say that it is done"
        )


def _off_screen(at: Pixels, screen: ScreenSpec) -> str | None:
    x, y = at
    inside = 0 <= x < screen.width and 0 <= y < screen.height
    return None if inside else f"[{x}, {y}] is off the screen of {screen.width} x {screen.height}"
