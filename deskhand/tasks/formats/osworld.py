"""OSWorld's task files, unchanged. Invariant: a file that loads is dumped as the same JSON value, whatever is in it; what is not
known of a file is said, with file and key, and kept.

The evaluator's lists (`func`, `result`, `expected`, `options`) belong together position by position; `conj` says how their scores
are joined ("and" where it is left out).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from deskhand.tasks.formats import osworld_getters, osworld_setup_steps
from deskhand.tasks.formats.located_yaml import (
    Keys,
    LocatedDocument,
    Problem,
    StrictModel,
    TaskFileError,
    load_json,
    unknown_keys,
    validated,
)
from deskhand.tasks.formats.osworld_getters import Getter, Getters, OtherGetter
from deskhand.tasks.formats.osworld_metric_options import INFEASIBLE, METRICS, option_problems
from deskhand.tasks.formats.osworld_setup_steps import OtherStep, Step

FOLDERS = ("evaluation_examples/examples", "examples")
"""Where task files lie in a checkout."""
COMMENT_KEYS = ("comments", "hint")


class EvaluatorSpec(StrictModel):
    func: str | list[str]
    result: Getters = None
    expected: Getters = None
    options: dict[str, Any] | list[dict[str, Any] | None] | None = None
    conj: Literal["and", "or"] | None = None
    postconfig: list[Step] = Field(default_factory=list)

    @property
    def clauses(self) -> list[EvaluatorClause]:
        """The metrics with what each of them gets."""
        if isinstance(self.func, str):
            one = [each if not isinstance(each, list) else None for each in (self.result, self.expected)]
            return [EvaluatorClause(self.func, one[0], one[1], self.options if isinstance(self.options, dict) else {})]
        results, expected, options = (
            _each(value, len(self.func)) for value in (self.result, self.expected, self.options)
        )
        return [
            EvaluatorClause(name, results[at], expected[at], options[at] or {}) for at, name in enumerate(self.func)
        ]


@dataclass(frozen=True)
class EvaluatorClause:
    """One metric of an evaluator."""

    metric: str
    result: Getter
    expected: Getter
    options: dict[str, Any]


class JsonTask(StrictModel):
    """What the files of OSWorld and of Windows Agent Arena have in common."""

    id: str
    instruction: str
    snapshot: str | None = None
    source: str | list[str] | None = None
    trajectory: str | None = None
    related_apps: list[str] = Field(default_factory=list)
    config: list[Step] = Field(default_factory=list)
    evaluator: EvaluatorSpec

    @property
    def infeasible(self) -> bool:
        return self.evaluator.func == INFEASIBLE

    def steps(self) -> Iterator[tuple[Keys, Step]]:
        """All set-up steps with their places, those before judging included."""
        for index, step in enumerate(self.config):
            yield ("config", index), step
        for index, step in enumerate(self.evaluator.postconfig):
            yield ("evaluator", "postconfig", index), step

    def getters(self) -> Iterator[tuple[Keys, Getter]]:
        """What is read to judge, with its place."""
        for role in ("result", "expected"):
            read = getattr(self.evaluator, role)
            places = enumerate(read) if isinstance(read, list) else [(None, read)]
            for index, getter in places:
                if getter is not None and not isinstance(getter, osworld_getters.EmptyGetter):
                    yield ("evaluator", role) if index is None else ("evaluator", role, index), getter


class OsworldTask(JsonTask):
    proxy: bool | None = None
    fixed_ip: bool | None = None
    possibility_of_env_change: str | None = None


TaskModel = TypeVar("TaskModel", bound=JsonTask)


@dataclass(frozen=True)
class Loaded(Generic[TaskModel]):
    """A task with its file and what there is to say about it."""

    path: Path
    task: TaskModel
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Corpus(Generic[TaskModel]):
    """The tasks of a folder, and the problems of the files that could not be loaded, file by file."""

    tasks: tuple[Loaded[TaskModel], ...]
    unreadable: tuple[tuple[Path, tuple[Problem, ...]], ...]


def load(path: Path) -> Loaded[OsworldTask]:
    """Load one task file. Raises `TaskFileError` when it is no JSON or a value is of the wrong kind."""
    document = load_json(path)
    return loaded(path, document, OsworldTask, osworld_setup_steps.WINDOWS_ONLY, osworld_getters.WINDOWS_ONLY)


def loaded(
    path: Path,
    document: LocatedDocument,
    model: type[TaskModel],
    not_steps: frozenset[str],
    not_getters: frozenset[str],
) -> Loaded[TaskModel]:
    """A document as a task of `model`, in which steps and getters of the kinds in `not_...` are problems."""
    task = validated(document, model)
    return Loaded(path, task, (*document.problems, *_problems(document, task, not_steps, not_getters)))


def dump(task: JsonTask) -> dict[str, Any]:
    """The JSON value that the task was loaded from."""
    return task.model_dump(mode="python", by_alias=True, exclude_unset=True)


def load_folder(folder: Path) -> Corpus[OsworldTask]:
    """All task files of a checkout, of its `evaluation_examples` or of any folder with task files in it. Raises `TaskFileError`
    when there is none."""
    return load_all(folder, FOLDERS, load)


def load_all(folder: Path, places: tuple[str, ...], load_one: Any) -> Corpus[Any]:
    found, unreadable = [], []
    for path in task_files(folder, places):
        try:
            found.append(load_one(path))
        except TaskFileError as error:
            unreadable.append((path, tuple(error.problems)))
    return Corpus(tuple(found), tuple(unreadable))


def task_files(folder: Path, places: tuple[str, ...]) -> list[Path]:
    """The JSON files of the first of `places` that there is in `folder`, or else of `folder` itself; sorted."""
    root = next((folder / place for place in places if (folder / place).is_dir()), folder)
    paths = sorted(root.rglob("*.json"))
    if not paths:
        raise TaskFileError([Problem(str(folder), "", "no task file (*.json) is in this folder")])
    return paths


def _each(value: object, count: int) -> list[Any]:
    """A list's values, at least `count` of them; None where it is too short or no list."""
    return [*(value if isinstance(value, list) else []), *[None] * count]


def _problems(
    document: LocatedDocument, task: JsonTask, not_steps: frozenset[str], not_getters: frozenset[str]
) -> Iterator[Problem]:
    """A key of the file itself that resembles none which is read is a note; within steps and getters it may be meant to act."""
    for keys in unknown_keys(task):
        last = str(keys[-1])
        comment = last.startswith("_") or last in COMMENT_KEYS
        text = "a comment; it has no effect" if comment else "this key is not known; it has no effect"
        near = difflib.get_close_matches(last, type(task).model_fields, n=1, cutoff=0.75)
        more = f"; did you mean {near[0]!r}?" if near and len(keys) == 1 and not comment else ""
        yield document.problem(keys, text + more, note=comment or (len(keys) == 1 and not near))
    for keys, step in task.steps():
        if isinstance(step, OtherStep) or step.type in not_steps:
            yield document.problem((*keys, "type"), f"there is no set-up step {step.type!r}")
    for keys, getter in task.getters():
        kind = getattr(getter, "type", "")
        if isinstance(getter, OtherGetter) or kind in not_getters:
            yield document.problem((*keys, "type"), f"there is no getter {kind!r}")
    yield from _evaluator_problems(document, task.evaluator)


def _evaluator_problems(document: LocatedDocument, evaluator: EvaluatorSpec) -> Iterator[Problem]:
    many = isinstance(evaluator.func, list)
    for role in ("result", "expected", "options"):
        value = getattr(evaluator, role)
        keys: Keys = ("evaluator", role)
        if isinstance(value, list) and not many:
            yield document.problem(keys, "a list, while func is one metric")
        elif many and isinstance(value, list) and len(value) != len(evaluator.func):
            yield document.problem(keys, f"{len(value)} entries, while func has {len(evaluator.func)}")
        elif many and value is not None and not isinstance(value, list):
            yield document.problem(keys, "one object, while func is a list")
    if evaluator.conj is not None and not many:
        yield document.problem(("evaluator", "conj"), "has no effect on one metric", note=True)
    for index, clause in enumerate(evaluator.clauses):
        at: Keys = (index,) if many else ()
        if clause.metric not in METRICS:
            yield document.problem(("evaluator", "func", *at), f"there is no metric {clause.metric!r}")
        listed: Keys = (index,) if isinstance(evaluator.options, list) else ()
        for key, message in option_problems(clause.metric, clause.options):
            note = key.startswith("_")
            yield document.problem(("evaluator", "options", *listed, key), message, note=note)
