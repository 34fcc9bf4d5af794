"""Recognize, check and describe task files of any format.

Used by `deskhand tasks lint` and `show`. JSON is OSWorld's or Windows Agent Arena's; YAML with the key `deskhand` is
Deskhand's, other YAML OpenAdapt's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from deskhand.errors import ConfigError
from deskhand.tasks.formats import openadapt, osworld, waa, yaml_schema
from deskhand.tasks.formats.located_yaml import Problem, TaskFileError, format_keys, load_json, load_yaml
from deskhand.tasks.formats.openadapt import LoadedOpenAdapt
from deskhand.tasks.formats.osworld import JsonTask, Loaded
from deskhand.tasks.formats.requirements import requirements_of, verdict
from deskhand.tasks.formats.yaml_schema import CheckNode, NativeTask
from deskhand.tasks.formats.yaml_task import task_of
from deskhand.tasks.task import Family, Task

SUFFIXES = (".json", ".yaml", ".yml")
Lines = list[tuple[str, str]]
"""A description: names with their values."""
_NOT_TASKS = ("index.json",)


def find_task_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the task files among `paths` and below the folders among them, sorted.

    Raises `ConfigError` for a path that is missing or not a task file, and for a folder without task files.
    """
    for path in paths:
        if path.is_dir():
            found = [
                each for each in sorted(path.rglob("*")) if each.suffix in SUFFIXES and each.name not in _NOT_TASKS
            ]
            if not found:
                raise ConfigError(f"{path}: no task files ({', '.join(SUFFIXES)}) in this folder")
            yield from found
        elif path.suffix not in SUFFIXES or not path.is_file():
            raise ConfigError(f"{path}: not a task file; expected a folder or a file with suffix {', '.join(SUFFIXES)}")
        else:
            yield path


def lint_file(path: Path) -> list[Problem]:
    """Return all problems and notes of a task file."""
    try:
        loaded = _load(path)
    except TaskFileError as error:
        return error.problems
    if not isinstance(loaded, NativeTask):
        return list(loaded.problems)
    missing = [program for program in loaded.programs if shutil.which(program) is None]
    return [
        Problem(str(path), "programs", f"{program} is not installed on this machine", note=True) for program in missing
    ]


def describe_file(path: Path) -> Lines:
    """Return the description of a task file. Raises `TaskFileError` if it is invalid."""
    loaded = _load(path)
    if isinstance(loaded, NativeTask):
        return _native_lines(loaded, path.parent)
    return _openadapt_lines(loaded) if isinstance(loaded, LoadedOpenAdapt) else _json_lines(loaded)


def describe_task(task: Task) -> Lines:
    """Return the description of a task."""
    return [
        ("task", task.id),
        ("instruction", task.instruction),
        ("screen", f"{task.width}x{task.height}, {task.theme}"),
        ("steps", f"at most {task.max_steps}"),
        ("split", task.split.replace("_", "-")),
        (
            "milestones",
            ", ".join(f"{milestone.name} ({milestone.weight:g})" for milestone in task.milestones) or "none",
        ),
    ]


def describe_family(family: Family, seed: int) -> Lines:
    """Return the description of one variant of a family that is not bundled."""
    task = family.generate(seed)
    needs = [("packages", ", ".join(family.applications) or "none")]
    return [
        *describe_task(task),
        *needs,
        ("oracle", f"none: {task.oracle_unavailable}" if task.oracle_unavailable else "yes"),
    ]


def _load(path: Path) -> Loaded[Any] | LoadedOpenAdapt | NativeTask:
    if path.suffix == ".json":
        return waa.load(path) if waa.is_windows(load_json(path)) else osworld.load(path)
    return yaml_schema.load(path) if yaml_schema.is_native(load_yaml(path)) else openadapt.load(path)


def _native_lines(task: NativeTask, folder: Path) -> Lines:
    lines = describe_task(task_of(task, folder))
    lines += [("programs", ", ".join(task.programs) or "none")]
    lines += [("setup", f"{name} {_value_text(value)}") for name, value in (step.selected for step in task.setup)]
    lines += [("check", line) for line in _check_lines(task.check)]
    lines += [("milestone", f"{each.name}: {line}") for each in task.milestones for line in _check_lines(each.check)]
    return [*lines, ("oracle", f"{yaml_schema.oracle_steps(task)} steps" if task.oracle is not None else "none")]


def _check_lines(node: CheckNode, depth: int = 0) -> Iterator[str]:
    name, value = node.selected
    weight = f" (weight {node.weight:g})" if node.weight is not None else ""
    if node.leaf is not None:
        yield f"{'  ' * depth}{name.rstrip('_')}{weight} {_value_text(value)}"
        return
    yield f"{'  ' * depth}{name} of{weight}"
    for part in value:
        yield from _check_lines(part, depth + 1)


def _value_text(value: Any) -> str:
    """Return what the file contains, in one line."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(value, ensure_ascii=False)


def _openadapt_lines(loaded: LoadedOpenAdapt) -> Lines:
    task = loaded.task
    lines = [
        ("task", loaded.id),
        ("instruction", loaded.instruction),
        ("steps", f"at most {task.max_steps}" if task.max_steps is not None else "no limit"),
        *(("setup", _value_text(step)) for step in task.setup or ()),
        *(("check", _value_text(check)) for check in task.evaluate or ()),
        *(("milestone", _value_text(milestone)) for milestone in task.milestones or ()),
    ]
    return [*lines, ("joined by", task.combine or "and")] if len(task.evaluate or ()) > 1 else lines


def _json_lines(loaded: Loaded[Any]) -> Lines:
    task: JsonTask = loaded.task
    requirements = requirements_of(task)
    lines = [
        ("task", task.id),
        ("instruction", task.instruction),
        ("applications", ", ".join(task.related_apps) or "none"),
        ("here", verdict(requirements)),
        *(("", str(each)) for each in requirements),
        *(("setup", f"{format_keys(keys)} {step.type}") for keys, step in task.steps()),
    ]
    for clause in task.evaluator.clauses:
        getters = ", ".join(getattr(getter, "type", "nothing") for getter in (clause.result, clause.expected))
        lines.append(
            ("judged by", f"{clause.metric} of {getters}" if not task.infeasible else "declaring the task infeasible")
        )
    if len(task.evaluator.clauses) > 1:
        lines.append(("joined by", task.evaluator.conj or "and"))
    return lines
