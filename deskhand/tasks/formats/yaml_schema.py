"""Schema of Deskhand's YAML task files.

Start with `load`; `yaml_task` turns a `NativeTask` into a `Task`. An unknown key or invalid value is a `Problem` with
file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict, StrictInt, field_validator, model_validator

from deskhand.tasks.checks.app_settings import BrowserCheck, SettingsCheck
from deskhand.tasks.checks.base import CheckModel, FactCheck, GuestPath, RelativePath
from deskhand.tasks.checks.database import SqliteCheck
from deskhand.tasks.checks.desktop_state import CommandCheck, ProcessCheck, WindowCheck
from deskhand.tasks.checks.files import CsvCheck, FileCheck, JsonCheck, TextCheck
from deskhand.tasks.checks.office_documents import DocumentCheck, SheetCheck
from deskhand.tasks.checks.reference_file import ImageCheck, PythonCheck, ReferenceFileCheck
from deskhand.tasks.checks.vlm_judge import VlmJudgeCheck
from deskhand.tasks.formats.located_yaml import Keys, LocatedDocument, Problem, TaskFileError, load_yaml, validate
from deskhand.tasks.task import Difficulty

VERSION = 2
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Seconds = Annotated[float, Field(gt=0, le=600)]


def _one_line(text: str) -> str:
    if not text.strip() or "\n" in text.strip():
        raise ValueError("must be one line of text")
    return text.strip()


OneLine = Annotated[str, AfterValidator(_one_line)]
Pixels = Annotated[tuple[StrictInt, StrictInt], Strict(False)]
Argv = Annotated[list[str], Field(min_length=1)]


class OneKeyModel(CheckModel):
    """A mapping with exactly one key, which names its kind."""

    @model_validator(mode="after")
    def _require_one(self) -> OneKeyModel:
        keys = self.model_fields_set - self._extra_keys()
        if len(keys) != 1 or getattr(self, next(iter(keys))) is None:
            names = [
                field.alias or name for name, field in type(self).model_fields.items() if name not in self._extra_keys()
            ]
            raise ValueError(f"set exactly one of {', '.join(names)}")
        return self

    @classmethod
    def _extra_keys(cls) -> frozenset[str]:
        """Keys that are allowed in addition."""
        return frozenset()

    @property
    def selected(self) -> tuple[str, Any]:
        (name,) = self.model_fields_set - self._extra_keys()
        return name, getattr(self, name)


class WriteStep(CheckModel):
    """A file of the guest: its text, or a copy of a file next to the task file."""

    path: GuestPath
    text: str | None = None
    copy_of: RelativePath | None = None

    @model_validator(mode="after")
    def _require_source(self) -> WriteStep:
        if (self.text is None) == (self.copy_of is None):
            raise ValueError("set either text or copy_of")
        return self


class LaunchStep(CheckModel):
    """Start a program and leave it running; with `window`, wait for its window."""

    run: Argv
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    window: str | None = None


class RunStep(CheckModel):
    """Run a command to its end; exit code 0 is required."""

    run: Argv
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    timeout_s: Seconds = 30.0


class WaitWindowStep(CheckModel):
    """Wait for windows whose title or class contains `window` (any case)."""

    window: str
    count: int = Field(default=1, ge=1)
    timeout_s: Seconds = 20.0


class PlaceWindowStep(CheckModel):
    """Move a window's client area, in pixels."""

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
    """A check. `all` is the minimum of its parts, `any` the maximum, `sum` the weighted mean."""

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
    vlm_judge: VlmJudgeCheck | None = None
    settings: SettingsCheck | None = None
    browser: BrowserCheck | None = None
    window: WindowCheck | None = None
    process: ProcessCheck | None = None
    image: ImageCheck | None = None
    python: PythonCheck | None = None
    weight: float | None = Field(default=None, gt=0)

    @classmethod
    def _extra_keys(cls) -> frozenset[str]:
        return frozenset({"weight"})

    @field_validator("all", "any")
    @classmethod
    def _unweighted(cls, parts: list[CheckNode] | None) -> list[CheckNode] | None:
        if any(part.weight is not None for part in parts or ()):
            raise ValueError("weight is only allowed in the parts of a sum")
        return parts

    @property
    def leaf(self) -> FactCheck | ReferenceFileCheck | None:
        found = self.selected[1]
        return None if isinstance(found, list) else found

    def leaves(self, keys: Keys) -> Iterator[tuple[Keys, FactCheck | ReferenceFileCheck]]:
        """Yield the checks of facts in it, with their locations; `keys` is its own location."""
        name, found = self.selected
        name = type(self).model_fields[name].alias or name
        if isinstance(found, list):
            for index, part in enumerate(found):
                yield from part.leaves((*keys, name, index))
        else:
            yield (*keys, name), found


class MilestoneNode(CheckModel):
    """A milestone. `after` names earlier milestones that must be fully reached before it counts."""

    name: OneLine
    weight: float = Field(gt=0, le=1)
    after: list[str] = Field(default_factory=list)
    check: CheckNode


class WindowPoint(CheckModel):
    """A position in pixels: of the screen, or of a window's client area (negative: from its right or lower edge)."""

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
    """Keys of one chord joined by +, such as ctrl+s."""
    wait: Seconds | None = None
    wait_window: WaitWindowStep | None = None
    wait_file: GuestPath | None = None


class ScreenSpec(CheckModel):
    width: int = Field(ge=64, le=7680)
    height: int = Field(ge=48, le=4320)


class TaskLimits(CheckModel):
    """Limits of an episode. When a timeout expires, the episode is errored."""

    steps: int = Field(ge=1, le=10_000)
    check_timeout_s: Seconds | None = None
    """Maximum duration of a check; null: the judge's default."""
    step_timeout_s: Seconds | None = None
    """Maximum duration of one step."""
    episode_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    """Maximum duration of an episode, from its reset to its score."""
    settle_grace_s: float | None = Field(default=None, ge=0, le=60)
    """Seconds after the end in which the check may become true, for programs that write late."""


class NativeTask(CheckModel):
    """A task file. `deskhand` is the version of the schema."""

    deskhand: Literal[2]
    id: str
    instruction: OneLine
    difficulty: Difficulty = "medium"
    screen: ScreenSpec = ScreenSpec(width=1280, height=720)
    theme: str = "plain"
    programs: list[str] = Field(default_factory=list)
    """Programs that must be installed."""
    setup: list[SetupStep] = Field(default_factory=list)
    check: CheckNode
    milestones: list[MilestoneNode] = Field(default_factory=list)
    limits: TaskLimits
    network: list[str] = Field(default_factory=list)
    """Hosts that the guest may reach. Must be empty: local desktops have no network."""
    format_penalty: float = Field(default=0.0, ge=0, le=1)
    step_cost: float = Field(default=0.0, ge=0, le=1)
    oracle: list[list[OracleOp]] | None = Field(default=None, min_length=1)
    """A solution: one list of ops per step, without the final `done`."""
    oracle_knows: list[str] = Field(default_factory=list)
    """Words that the oracle types because everyone knows the program."""
    oracle_follows: dict[str, list[str]] = Field(default_factory=dict)
    """For words that the oracle types, the texts on the screen from which they follow."""

    @field_validator("id")
    @classmethod
    def _valid_id(cls, name: str) -> str:
        if not _WORD.fullmatch(name):
            raise ValueError("must be a name of letters, digits, '.', '_' and '-'")
        return name

    @field_validator("network")
    @classmethod
    def _offline(cls, hosts: list[str]) -> list[str]:
        if hosts:
            raise ValueError("must be empty, desktops have no network; serve files inside the guest")
        return hosts


def load(path: Path) -> NativeTask:
    """Load a task file. Raises `TaskFileError` with all its problems."""
    document = load_yaml(path)
    version = document.value.get("deskhand") if isinstance(document.value, dict) else None
    if type(version) is int and version != VERSION:
        message = f"schema version must be {VERSION}, got {version}; rename the keys, set {VERSION}"
        raise TaskFileError([document.problem(("deskhand",), message)])
    task = validate(document, NativeTask)
    problems = list(_problems(document, task, path.parent))
    if problems:
        raise TaskFileError(problems)
    return task


def is_native(document: LocatedDocument) -> bool:
    return isinstance(document.value, dict) and "deskhand" in document.value


def oracle_steps(task: NativeTask) -> int:
    """Return the number of steps of the oracle, the final `done` included. Waits split a list of ops."""
    count = 1
    for ops in task.oracle or ():
        waits = [op.wait_window is not None or op.wait_file is not None for op in ops]
        count += sum(not waiting and (index == 0 or waits[index - 1]) for index, waiting in enumerate(waits))
    return count


def _problems(document: LocatedDocument, task: NativeTask, folder: Path) -> Iterator[Problem]:
    """Yield the problems that involve several values."""
    for index, step in enumerate(task.setup):
        if step.write is not None and step.write.copy_of is not None and not (folder / step.write.copy_of).is_file():
            yield document.problem(
                ("setup", index, "write", "copy_of"), f"file not found: {folder / step.write.copy_of}"
            )
        if step.place is not None and (wrong := _screen_problem(step.place.at, task.screen)):
            yield document.problem(("setup", index, "place", "at"), wrong)
    nodes: list[tuple[Keys, CheckNode]] = [(("check",), task.check)]
    nodes += [(("milestones", index, "check"), milestone.check) for index, milestone in enumerate(task.milestones)]
    for keys, leaf in (found for location, node in nodes for found in node.leaves(location)):
        if (
            isinstance(leaf, ReferenceFileCheck)
            and (name := leaf.required_file()) is not None
            and not (folder / name).is_file()
        ):
            yield document.problem(keys, f"file not found: {folder / name}")
    names: list[str] = []
    for index, milestone in enumerate(task.milestones):
        if milestone.name in names:
            yield document.problem(("milestones", index, "name"), "another milestone has this name")
        for name in milestone.after:
            if name not in names:
                yield document.problem(("milestones", index, "after"), f"must name earlier milestones, got {name!r}")
        names.append(milestone.name)
    total = sum(milestone.weight for milestone in task.milestones)
    if total > 1 + 1e-9:
        yield document.problem(("milestones",), f"the weights must sum to at most 1, got {total:g}")
    yield from _oracle_problems(document, task)


def _oracle_problems(document: LocatedDocument, task: NativeTask) -> Iterator[Problem]:
    for number, ops in enumerate(task.oracle or ()):
        for index, op in enumerate(ops):
            for point in op.drag or [point for point in (op.click, op.move, op.scroll) if point is not None]:
                if point.window is None and (wrong := _screen_problem(point.at, task.screen)):
                    yield document.problem(("oracle", number, index), wrong)
    if task.oracle is not None and oracle_steps(task) > task.limits.steps:
        yield document.problem(
            ("limits", "steps"), f"the oracle takes {oracle_steps(task)} steps, its final done included"
        )


def _screen_problem(at: Pixels, screen: ScreenSpec) -> str | None:
    x, y = at
    inside = 0 <= x < screen.width and 0 <= y < screen.height
    return None if inside else f"[{x}, {y}] is outside the screen of {screen.width}x{screen.height}"
