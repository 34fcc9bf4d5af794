"""OSWorld's task files, unchanged.

Start with `load` or `load_folder`. The evaluator's lists (`func`, `result`, `expected`, `options`) correspond by
position; `conj` combines their scores (default: "and").

Invariant: a loaded file dumps to the same JSON value; unknown parts are kept and reported with file and key.
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
    validate,
    value_notes,
)
from deskhand.tasks.formats.osworld_getters import Getter, Getters, OtherGetter
from deskhand.tasks.formats.osworld_metric_options import (
    INFEASIBLE,
    METRICS,
    WINDOWS_ONLY_METRICS,
    option_problems,
)
from deskhand.tasks.formats.osworld_setup_steps import OtherStep, Step

FOLDERS = ("evaluation_examples/examples", "examples")
"""Folders of task files in a checkout."""
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
        """The metrics with their getters and options."""
        if isinstance(self.func, str):
            one = [each if not isinstance(each, list) else None for each in (self.result, self.expected)]
            return [EvaluatorClause(self.func, one[0], one[1], self.options if isinstance(self.options, dict) else {})]
        results, expected, options = (
            _padded(value, len(self.func)) for value in (self.result, self.expected, self.options)
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
    """The common part of OSWorld's and Windows Agent Arena's task files."""

    id: str
    instruction: str
    snapshot: Any = None
    source: Any = None
    trajectory: Any = None
    related_apps: list[str] = Field(default_factory=list)
    config: list[Step] = Field(default_factory=list)
    evaluator: EvaluatorSpec

    @property
    def infeasible(self) -> bool:
        return self.evaluator.func == INFEASIBLE

    def metrics(self) -> list[str]:
        """Return the names of the metrics."""
        return [clause.metric for clause in self.evaluator.clauses]

    def steps(self) -> Iterator[tuple[Keys, Step]]:
        """Yield all setup steps with their locations, including those before judging."""
        for index, step in enumerate(self.config):
            yield ("config", index), step
        for index, step in enumerate(self.evaluator.postconfig):
            yield ("evaluator", "postconfig", index), step

    def getters(self) -> Iterator[tuple[Keys, Getter]]:
        """Yield the getters with their locations."""
        for role in ("result", "expected"):
            read = getattr(self.evaluator, role)
            indexed = enumerate(read) if isinstance(read, list) else [(None, read)]
            for index, getter in indexed:
                if getter is not None and not isinstance(getter, osworld_getters.EmptyGetter):
                    yield ("evaluator", role) if index is None else ("evaluator", role, index), getter


class OsworldTask(JsonTask):
    proxy: Any = None
    fixed_ip: Any = None
    possibility_of_env_change: Any = None


TaskModel = TypeVar("TaskModel", bound=JsonTask)
AnyTask = TypeVar("AnyTask")


@dataclass(frozen=True)
class Loaded(Generic[AnyTask]):
    """A task with its file and problems."""

    path: Path
    task: AnyTask
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Corpus(Generic[AnyTask]):
    """The tasks of a folder, and the problems of the files that could not be loaded."""

    tasks: tuple[Loaded[AnyTask], ...]
    unreadable: tuple[tuple[Path, tuple[Problem, ...]], ...]


@dataclass(frozen=True)
class Vocabulary:
    """Which of the known names a benchmark has not, and whether others are notes: its own server may know them."""

    not_steps: frozenset[str] = frozenset()
    not_getters: frozenset[str] = frozenset()
    not_metrics: frozenset[str] = frozenset()
    is_open: bool = False


OSWORLD_VOCABULARY = Vocabulary(osworld_setup_steps.WINDOWS_ONLY, osworld_getters.WINDOWS_ONLY, WINDOWS_ONLY_METRICS)


def load(path: Path) -> Loaded[OsworldTask]:
    """Load a task file. Raises `TaskFileError` if it is not a JSON object with the keys of a task."""
    return load_document(path, load_json(path), OsworldTask, OSWORLD_VOCABULARY)


def load_document(
    path: Path, document: LocatedDocument, model: type[TaskModel], vocabulary: Vocabulary
) -> Loaded[TaskModel]:
    """Return a document as a task of `model`. Names that are not in the vocabulary are problems."""
    task = validate(document, model)
    return Loaded(path, task, (*document.problems, *_problems(document, task, vocabulary)))


def dump(task: JsonTask) -> dict[str, Any]:
    """Return the JSON value that the task was loaded from."""
    return task.model_dump(mode="python", by_alias=True, exclude_unset=True)


def load_folder(folder: Path) -> Corpus[OsworldTask]:
    """Load the task files of a checkout or any folder. Raises `TaskFileError` if there are none."""
    return load_all(folder, FOLDERS, load)


def load_all(folder: Path, subfolders: tuple[str, ...], load_one: Any) -> Corpus[Any]:
    found, unreadable = [], []
    for path in task_files(folder, subfolders):
        try:
            found.append(load_one(path))
        except TaskFileError as error:
            unreadable.append((path, tuple(error.problems)))
    return Corpus(tuple(found), tuple(unreadable))


def task_files(folder: Path, subfolders: tuple[str, ...]) -> list[Path]:
    """Return the sorted JSON files of the first of `subfolders` that exists, or else of `folder`."""
    root = next((folder / name for name in subfolders if (folder / name).is_dir()), folder)
    paths = sorted(root.rglob("*.json"))
    if not paths:
        raise TaskFileError([Problem(str(folder), "", "no task files (*.json) in this folder")])
    return paths


def _padded(value: object, count: int) -> list[Any]:
    """Return a list padded with None to at least `count` values; anything else gives only None."""
    return [*(value if isinstance(value, list) else []), *[None] * count]


def _problems(document: LocatedDocument, task: JsonTask, vocabulary: Vocabulary) -> Iterator[Problem]:
    """Yield the problems of a task. An unknown top-level key that resembles no known one is a note, and so is a value
    of a step or getter that its benchmark may not accept: it is kept, and no task is lost for it."""
    kept = [keys for keys, part in (*task.steps(), *task.getters()) if isinstance(part, OtherStep | OtherGetter)]
    for keys in unknown_keys(task):
        if any(keys[: len(inside)] == inside for inside in kept):
            continue
        last = str(keys[-1])
        comment = last.startswith("_") or last in COMMENT_KEYS
        text = "comment, has no effect" if comment else "unknown key, has no effect"
        near = difflib.get_close_matches(last, type(task).model_fields, n=1, cutoff=0.75)
        more = f"; did you mean {near[0]!r}?" if near and len(keys) == 1 and not comment else ""
        yield document.problem(keys, text + more, note=comment or (len(keys) == 1 and not near))
    for keys, step in task.steps():
        if isinstance(step, OtherStep) and (model := osworld_setup_steps.MODELS.get(step.type)) is not None:
            yield from value_notes(document, keys, model)
        elif isinstance(step, OtherStep) or step.type in vocabulary.not_steps:
            yield document.problem((*keys, "type"), f"unknown setup step {step.type!r}", note=vocabulary.is_open)
    for keys, getter in task.getters():
        kind = getattr(getter, "type", "")
        if isinstance(getter, OtherGetter) and (model := osworld_getters.MODELS.get(kind)) is not None:
            yield from value_notes(document, keys, model)
        elif isinstance(getter, OtherGetter) or kind in vocabulary.not_getters:
            yield document.problem((*keys, "type"), f"unknown getter {kind!r}", note=vocabulary.is_open)
    yield from _evaluator_problems(document, task.evaluator, vocabulary)


def _evaluator_problems(
    document: LocatedDocument, evaluator: EvaluatorSpec, vocabulary: Vocabulary
) -> Iterator[Problem]:
    many = isinstance(evaluator.func, list)
    for role in ("result", "expected", "options"):
        value = getattr(evaluator, role)
        keys: Keys = ("evaluator", role)
        if isinstance(value, list) and not many:
            yield document.problem(keys, "is a list, but func is one metric")
        elif many and isinstance(value, list) and len(value) != len(evaluator.func):
            yield document.problem(keys, f"has {len(value)} entries, but func has {len(evaluator.func)}")
        elif many and value is not None and not isinstance(value, list):
            yield document.problem(keys, "is one object, but func is a list")
    if evaluator.conj is not None and not many:
        yield document.problem(("evaluator", "conj"), "has no effect on one metric", note=True)
    for index, clause in enumerate(evaluator.clauses):
        at: Keys = (index,) if many else ()
        if clause.metric not in METRICS or clause.metric in vocabulary.not_metrics:
            text = f"unknown metric {clause.metric!r}"
            yield document.problem(("evaluator", "func", *at), text, note=vocabulary.is_open)
        listed: Keys = (index,) if isinstance(evaluator.options, list) else ()
        for key, message in option_problems(clause.metric, clause.options):
            note = key.startswith("_")
            yield document.problem(("evaluator", "options", *listed, key), message, note=note)
