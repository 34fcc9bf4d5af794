"""Task files of any kind, told apart by what is in them. Invariant: every file is either one of the kinds or refused with its name.

JSON is OSWorld's or Windows Agent Arena's; YAML with the key `deskhand` is our own, other YAML OpenAdapt's.
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
from deskhand.tasks.formats.located_yaml import Problem, TaskFileError, key_text, load_json, load_yaml
from deskhand.tasks.formats.openadapt import LoadedOpenAdapt
from deskhand.tasks.formats.osworld import JsonTask, Loaded
from deskhand.tasks.formats.requirements import requirements_of, verdict
from deskhand.tasks.formats.yaml_schema import CheckNode, NativeTask
from deskhand.tasks.formats.yaml_task import task_of
from deskhand.tasks.task import Task

SUFFIXES = (".json", ".yaml", ".yml")
Lines = list[tuple[str, str]]
"""What is shown of a task: names with their texts."""
_NOT_TASKS = ("index.json",)


def below(paths: Iterable[Path]) -> Iterator[Path]:
    """The task files among `paths` and in the folders among them, sorted. Raises `ConfigError` for a path that is not there or is
    of no kind, and for a folder without task files."""
    for path in paths:
        if path.is_dir():
            found = [
                each for each in sorted(path.rglob("*")) if each.suffix in SUFFIXES and each.name not in _NOT_TASKS
            ]
            if not found:
                raise ConfigError(f"{path}: no task file ({', '.join(SUFFIXES)}) is in this folder")
            yield from found
        elif path.suffix not in SUFFIXES or not path.is_file():
            raise ConfigError(f"{path}: no task file; give a folder or a file that ends in {', '.join(SUFFIXES)}")
        else:
            yield path


def problems_of(path: Path) -> list[Problem]:
    """All that there is to say about a task file; raises nothing for one that is wrong."""
    try:
        loaded = _loaded(path)
    except TaskFileError as error:
        return error.problems
    if not isinstance(loaded, NativeTask):
        return list(loaded.problems)
    missing = [program for program in loaded.programs if shutil.which(program) is None]
    return [
        Problem(str(path), "programs", f"{program} is not installed on this machine", note=True) for program in missing
    ]


def shown(path: Path) -> Lines:
    """A task file in words. Raises `TaskFileError` when it is wrong."""
    loaded = _loaded(path)
    if isinstance(loaded, NativeTask):
        return _native_lines(loaded, path.parent)
    return _openadapt_lines(loaded) if isinstance(loaded, LoadedOpenAdapt) else _json_lines(loaded)


def described(task: Task) -> Lines:
    """A task in words."""
    return [
        ("task", task.id),
        ("instruction", task.instruction),
        ("screen", f"{task.width} x {task.height}, {task.theme}"),
        ("steps", f"at most {task.max_steps}"),
        ("split", task.split.replace("_", "-")),
        (
            "milestones",
            ", ".join(f"{milestone.name} ({milestone.weight:g})" for milestone in task.milestones) or "none",
        ),
    ]


def _loaded(path: Path) -> Loaded[Any] | LoadedOpenAdapt | NativeTask:
    if path.suffix == ".json":
        return waa.load(path) if waa.is_windows(load_json(path)) else osworld.load(path)
    return yaml_schema.load(path) if yaml_schema.is_native(load_yaml(path)) else openadapt.load(path)


def _native_lines(task: NativeTask, folder: Path) -> Lines:
    lines = described(task_of(task, folder))
    lines += [("programs", ", ".join(task.programs) or "none")]
    lines += [("setup", f"{name} {_value_text(value)}") for name, value in (step.chosen for step in task.setup)]
    lines += [("check", line) for line in _check_lines(task.check)]
    lines += [("milestone", f"{each.name}: {line}") for each in task.milestones for line in _check_lines(each.check)]
    return [*lines, ("oracle", f"{yaml_schema.oracle_steps(task)} steps" if task.oracle is not None else "none")]


def _check_lines(node: CheckNode, depth: int = 0) -> Iterator[str]:
    name, value = node.chosen
    weight = f" (weight {node.weight:g})" if node.weight is not None else ""
    if node.leaf is not None:
        yield f"{'  ' * depth}{name.rstrip('_')}{weight} {_value_text(value)}"
        return
    yield f"{'  ' * depth}{name} of{weight}"
    for part in value:
        yield from _check_lines(part, depth + 1)


def _value_text(value: Any) -> str:
    """What was written in the file, in one line."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(value, ensure_ascii=False)


def _openadapt_lines(loaded: LoadedOpenAdapt) -> Lines:
    task = loaded.task
    lines = [
        ("task", loaded.id),
        ("instruction", loaded.instruction),
        ("steps", f"at most {task.max_steps}" if task.max_steps is not None else "no limit of its own"),
        *(("setup", _value_text(step)) for step in task.setup or ()),
        *(("check", _value_text(check)) for check in task.evaluate or ()),
        *(("milestone", _value_text(milestone)) for milestone in task.milestones or ()),
    ]
    return [*lines, ("joined by", task.combine or "and")] if len(task.evaluate or ()) > 1 else lines


def _json_lines(loaded: Loaded[Any]) -> Lines:
    task: JsonTask = loaded.task
    needs = requirements_of(task)
    lines = [
        ("task", task.id),
        ("instruction", task.instruction),
        ("applications", ", ".join(task.related_apps) or "none"),
        ("here", verdict(needs)),
        *(("", str(need)) for need in needs),
        *(("setup", f"{key_text(keys)} {step.type}") for keys, step in task.steps()),
    ]
    for clause in task.evaluator.clauses:
        read = ", ".join(getattr(getter, "type", "nothing") for getter in (clause.result, clause.expected))
        lines.append(
            ("judged by", f"{clause.metric} of {read}" if not task.infeasible else "saying that it cannot be done")
        )
    if len(task.evaluator.clauses) > 1:
        lines.append(("joined by", task.evaluator.conj or "and"))
    return lines
