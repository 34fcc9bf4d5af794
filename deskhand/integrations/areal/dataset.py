"""Data rows of an AReaL experiment, and the tasks that they describe.

Used by `entrypoint`, `workflow` and `agent`. A row contains JSON types only, so that every worker builds the same
task.
"""

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
    """Return `count` rows that cycle through the families, each with its own seeds from variant `first` on."""
    if not families:
        raise ConfigError(f"deskhand.train.families: empty; available: {', '.join(sorted(basics.FAMILIES))}")
    for name in families:
        family_registry.make_task(name, 0)
    return [
        {"family": families[n % len(families)], "seed": seed_for(split, first + n // len(families))}
        for n in range(count)
    ]


def task_from_row(row: Mapping[str, Any]) -> Task:
    """Return the task of a row with `family` and `seed`, or with the path of an OSWorld task file: `osworld`, or
    OpenAdapt's `task_config_path`.

    Optional keys with a path: `width`, `height`, `max_steps` and `instruction`. OpenAdapt's `server_url` and
    `evaluate_url` are ignored, since desktops are leased. Raises `ConfigError` for other rows and for tasks that
    cannot be scored here.
    """
    if path := row.get("osworld") or row.get("task_config_path"):
        from deskhand.osworld.task import MAX_STEPS, SCREEN, load_task

        size = int(row.get("width") or SCREEN[0]), int(row.get("height") or SCREEN[1])
        task = load_task(Path(path), size=size, max_steps=int(row.get("max_steps") or MAX_STEPS))
        return replace(task, instruction=str(row.get("instruction") or task.instruction))
    try:
        return family_registry.make_task(str(row["family"]), int(row["seed"]))
    except KeyError as error:
        raise ConfigError(f"data row: missing key {error}; it has {', '.join(map(str, row))}") from None


def task_for(settings: WorkflowSettings, row: Mapping[str, Any]) -> Task:
    """Return the task of a row; enables the accessibility tree if the agent observes text."""
    task = import_by_path(settings.tasks)(row)
    return task if settings.uses_images else replace(task, accessibility=True)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON or JSON-lines file. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        found = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not valid JSON or JSON lines: {error}") from None
    for number, row in enumerate(found, 1):
        if not isinstance(row, dict):
            raise ConfigError(f"{path}: row {number}: expected an object, got {type(row).__name__}")
    return found


def read_openadapt_rows(path: Path) -> list[dict[str, Any]]:
    """Return rows with `task_id` and other keys of `OPENADAPT_KEYS`. Raises `ConfigError` with file and row."""
    found = read_rows(path)
    for number, row in enumerate(found, 1):
        if not row.get("task_id"):
            raise ConfigError(f"{path}: row {number}: missing task_id")
        if unknown := sorted(set(row) - set(OPENADAPT_KEYS)):
            raise ConfigError(
                f"{path}: row {number}: unknown keys: {', '.join(unknown)}; known: {', '.join(OPENADAPT_KEYS)}"
            )
        if not isinstance(row.get("max_steps", 1), int) or row.get("max_steps", 1) < 1:
            raise ConfigError(f"{path}: row {number}: max_steps must be a positive integer, got {row['max_steps']!r}")
    return found
