"""Rows of data and the tasks that they stand for. Invariant: a row holds JSON types and says which task it is, so that any worker
makes the same task of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError
from deskhand.integrations.areal.settings import WorkflowSettings, import_by_path
from deskhand.tasks.suites import basics, family_registry
from deskhand.tasks.task import Split, Task, seed_for

OPENADAPT_KEYS = ("task_id", "instruction", "max_steps", "server_url", "evaluate_url", "task_config_path")


def make_rows(families: Sequence[str], count: int, split: Split = "train", first: int = 0) -> list[dict[str, Any]]:
    """`count` rows: the families in turn, each with seeds of its own from the `first` variant of the split on."""
    if not families:
        raise ConfigError(f"no task family is named; there are {', '.join(sorted(basics.FAMILIES))}")
    for name in families:
        family_registry.make_task(name, 0)
    return [
        {"family": families[n % len(families)], "seed": seed_for(split, first + n // len(families))}
        for n in range(count)
    ]


def task_from_row(row: Mapping[str, Any]) -> Task:
    """The task of a row with `family` and `seed`, or with the path of a task file of OSWorld: `osworld`, or OpenAdapt's
    `task_config_path`.

    Further keys of a row with a path: `width`, `height`, `max_steps` and `instruction`. Desktops are leased, so an OpenAdapt row's
    `server_url` and `evaluate_url` are not asked. Raises `ConfigError` for another row, and for a task that cannot be judged here.
    """
    if path := row.get("osworld") or row.get("task_config_path"):
        from deskhand.osworld.task import MAX_STEPS, SCREEN, load_task

        size = int(row.get("width") or SCREEN[0]), int(row.get("height") or SCREEN[1])
        task = load_task(Path(path), size=size, max_steps=int(row.get("max_steps") or MAX_STEPS))
        return replace(task, instruction=str(row.get("instruction") or task.instruction))
    try:
        return family_registry.make_task(str(row["family"]), int(row["seed"]))
    except KeyError as error:
        raise ConfigError(f"a row of data without {error}; it has {', '.join(map(str, row))}") from None


def task_for(settings: WorkflowSettings, row: Mapping[str, Any]) -> Task:
    """The task of a row under these settings; a model that is shown words is told of the accessibility tree."""
    task = import_by_path(settings.tasks)(row)
    return task if settings.sees else replace(task, accessibility=True)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON or JSON-lines file. Raises `ConfigError` with the file and what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        found = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON or JSON lines: {error}") from None
    for number, row in enumerate(found, 1):
        if not isinstance(row, dict):
            raise ConfigError(f"{path}: row {number} is a {type(row).__name__}; a row is an object")
    return found


def read_openadapt_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON or JSON-lines file in which each object has `task_id` and what else of `OPENADAPT_KEYS` it needs.

    Raises `ConfigError` with file and row for a row that names no task and for keys that are not known.
    """
    found = read_rows(path)
    for number, row in enumerate(found, 1):
        if not row.get("task_id"):
            raise ConfigError(f"{path}: row {number} has no task_id")
        if unknown := sorted(set(row) - set(OPENADAPT_KEYS)):
            raise ConfigError(
                f"{path}: row {number} has unknown keys: {', '.join(unknown)}; known: {', '.join(OPENADAPT_KEYS)}"
            )
        if not isinstance(row.get("max_steps", 1), int) or row.get("max_steps", 1) < 1:
            raise ConfigError(f"{path}: row {number}: max_steps is {row['max_steps']!r}; give a number of steps")
    return found
