"""Data rows of an AReaL experiment, and the tasks that they describe.

Used by `entrypoint`, `workflow` and `agent`. A row contains JSON types only, so that every worker builds the same
task. Rows come from a suite, by the code of the local trainer, or from a file, by `read_rows`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import ValidationError

from deskhand.config.schema import SuiteConfig
from deskhand.desktop.remote.waa_server import EVALUATOR_PORT
from deskhand.errors import ConfigError
from deskhand.integrations.areal.settings import WorkflowSettings, import_by_path
from deskhand.osworld import task as osworld_task
from deskhand.recipes.per_host_evaluator import PerHostEvaluator
from deskhand.recipes.suite import SCREENS, Suite, load_suite
from deskhand.tasks.formats import openadapt, task_files, waa, yaml_schema, yaml_task
from deskhand.tasks.formats.located_yaml import load_json, load_yaml, require_valid
from deskhand.tasks.suites import family_registry
from deskhand.tasks.task import Split, Task, seed_for

FORMATS = ("osworld", "waa", "openadapt", "deskhand")
"""Keys whose value is the path of a task file in this format."""
OPENADAPT_KEYS = (
    "task_id", "instruction", "name", "domain", "max_steps", "server_url", "evaluate_url", "task_config_path", "setup",
    "evaluate", "milestones", "combine",
)  # fmt: skip
"""Keys of OpenAdapt's rows: those of its `WAADesktopWorkflow`, and those of its task files, written into the row."""
ROW_KEYS = (
    *FORMATS, *OPENADAPT_KEYS, "suite", "backend", "family", "seed", "width", "height", "episode_id",
)  # fmt: skip
DEFAULT_COUNT = 64
"""Rows of a suite whose families have unlimited variants."""


@dataclass(frozen=True)
class Rows:
    """Rows of a split, and what was left out, each with the reason."""

    rows: list[dict[str, Any]]
    skipped: tuple[str, ...] = ()
    num_tasks: int = 0
    tasks: list[Task] = field(default_factory=list, compare=False)
    """The tasks of the rows, in their order, if they were loaded."""


def suite_rows(
    suite: SuiteConfig,
    backend: str,
    split: Split,
    *,
    families: Sequence[str] = (),
    count: int | None = None,
    first: int = 0,
) -> Rows:
    """Return the rows of a split of a suite for desktops of `backend`; `count` None is every task file once.

    `families` selects tasks of the split (empty: all). Families with unlimited variants take turns, each with its own
    seeds from variant `first` on. Raises `ConfigError`, as `load_suite` does.
    """
    loaded = load_suite(suite, backend)
    names = _select(loaded, split, families)
    if count is None:
        count = DEFAULT_COUNT if loaded.is_parametric else len(names)
    order = [(names[n % len(names)], seed_for(split, first + n // len(names))) for n in range(count)]
    shared: dict[str, Any] = {}
    if suite.path is not None or suite.name not in (None, "basics", "web", "miniwob"):
        plain = suite.model_dump(mode="json", exclude_defaults=True, exclude={"families", "exclude", "eval_fraction"})
        if suite.path is not None:
            plain["path"] = str(suite.path.resolve())
        shared = {"suite": plain, "backend": backend}
    rows = [{**shared, "family": name, "seed": seed} for name, seed in order]
    return Rows(rows, loaded.skipped if split == "train" else (), len(names))


def _select(loaded: Suite, split: Split, families: Sequence[str]) -> tuple[str, ...]:
    names = loaded.train_tasks if split == "train" else loaded.eval_tasks
    if not families:
        return names
    found = tuple(name for name in names if any(name == each or name.startswith(f"{each}/") for each in families))
    missing = [each for each in families if not any(name == each or name.startswith(f"{each}/") for name in names)]
    if not missing:
        return found
    if not loaded.is_parametric:
        raise ConfigError(f"deskhand.{'train' if split == 'train' else 'valid'}.families: no task {missing[0]!r}")
    for name in families:  # families beside the suite's own selection
        family_registry.make_task(name, 0)
    return tuple(families)


def task_from_row(row: Mapping[str, Any]) -> Task:
    """Return the task of a row.

    A row has `family` and `seed`, with `suite` (`SuiteConfig` as JSON) and `backend` unless the family is bundled; or
    the path of a task file under a key of `FORMATS`; or OpenAdapt's keys, with `task_config_path` (their YAML, or a
    JSON file of OSWorld or Windows Agent Arena) or with the content of a YAML file in the row. Optional keys of rows
    with a file: `width`, `height`, `max_steps` and `instruction`; `evaluate_url` names the port of the evaluate server.
    OpenAdapt's `server_url` is used by `WAADesktopWorkflow` only, since other desktops are leased.

    Raises `ConfigError` for an unknown key, for other rows and for tasks that cannot be scored here.
    """
    row = {key: value for key, value in row.items() if value is not None}  # a table of rows fills gaps with None
    check_keys(row)
    if "suite" in row:
        return _suite_task(row)
    kind = next((key for key in FORMATS if key in row), None)
    if kind is not None or "task_config_path" in row:
        path = Path(str(row[kind or "task_config_path"])).expanduser()
        return _adapted(_file_task(path, kind or _format_of(path), row), row)
    if "evaluate" in row or "milestones" in row:
        return _adapted(_inline_task(row), row)
    if "family" in row and "seed" in row:
        return family_registry.make_task(str(row["family"]), int(row["seed"]))
    if "task_id" in row:
        raise ConfigError(
            f"data row {row['task_id']!r}: it names a task of a machine's own server; add task_config_path with the "
            "task's file, or evaluate"
        )
    missing = next(key for key in ("family", "seed") if key not in row)
    raise ConfigError(f"data row: missing key '{missing}'; it has {', '.join(map(str, row))}")


def check_keys(row: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a key that no row has."""
    for key in row:
        if key not in ROW_KEYS:
            near = difflib.get_close_matches(str(key), ROW_KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ROW_KEYS)}"
            raise ConfigError(f"data row: unknown key {key!r}; {hint}")
    if not isinstance(row.get("max_steps", 1), int) or row.get("max_steps", 1) < 1:
        raise ConfigError(f"data row: max_steps must be a positive integer, got {row['max_steps']!r}")


def _suite_task(row: Mapping[str, Any]) -> Task:
    given = {key: value for key, value in dict(row["suite"]).items() if value is not None}
    try:
        suite = SuiteConfig.model_validate(given)
        name, seed, backend = str(row["family"]), int(row["seed"]), str(row["backend"])
    except ValidationError as error:
        raise ConfigError(f"data row: suite: {error.errors()[0]['msg']}") from None
    except KeyError as error:
        raise ConfigError(f"data row: missing key {error}; it has {', '.join(map(str, row))}") from None
    if suite.format in FORMATS:  # one file, not the folder
        suite = suite.model_copy(update={"families": (name,)})
    return load_suite(suite, backend).make(name, seed)


def _format_of(path: Path) -> str:
    """Return the format of a task file, which OpenAdapt's rows do not name."""
    if path.suffix == ".json":
        return "waa" if waa.is_windows(load_json(path)) else "osworld"
    if path.suffix not in task_files.SUFFIXES:
        raise ConfigError(f"{path}: not a task file; expected a suffix of {', '.join(task_files.SUFFIXES)}")
    return "deskhand" if yaml_schema.is_native(load_yaml(path)) else "openadapt"


def _file_task(path: Path, kind: str, row: Mapping[str, Any]) -> Task:
    default = SCREENS.get(kind, (0, 0))
    size = int(row.get("width", default[0])), int(row.get("height", default[1]))
    if kind == "osworld":
        return osworld_task.load_task(path, size=size)
    if kind == "openadapt":
        return openadapt.load_task(path, *size)
    if kind == "deskhand":
        return yaml_task.task_of(yaml_schema.load(path), path.parent)
    loaded = waa.load(path)
    require_valid(loaded.problems)
    port = urlsplit(str(row.get("evaluate_url", ""))).port or EVALUATOR_PORT
    return waa.task_of(loaded, partial(PerHostEvaluator, port=port), *size)


def _inline_task(row: Mapping[str, Any]) -> Task:
    own = {key: row[key] for key in get_args(openadapt.FileKey) if key in row}
    named = {"id": str(row["task_id"])} if "task_id" in row else {}
    width, height = SCREENS["openadapt"]
    loaded = openadapt.load_content({**own, **named}, f"data row {row.get('task_id', '')!r}")
    return openadapt.task_of(loaded, int(row.get("width", width)), int(row.get("height", height)))


def _adapted(task: Task, row: Mapping[str, Any]) -> Task:
    changes = {key: row[key] for key in ("max_steps", "instruction") if key in row}
    return replace(task, **changes) if changes else task


def task_for(settings: WorkflowSettings, row: Mapping[str, Any]) -> Task:
    """Return the task of a row; enables the accessibility tree if the agent observes text."""
    task = import_by_path(settings.tasks)(row)
    return task if settings.uses_images else replace(task, accessibility=True)


def load_rows(path: Path, settings: WorkflowSettings, *, skip_invalid: bool = False) -> Rows:
    """Return the rows of a file with their tasks.

    With `skip_invalid`, a row whose task cannot be loaded is left out, with the reason. Raises `ConfigError` with file
    and row.
    """
    rows: list[dict[str, Any]] = []
    tasks: list[Task] = []
    skipped: list[str] = []
    for number, row in enumerate(read_rows(path), 1):
        try:
            if not isinstance(row, dict):
                raise ConfigError(f"expected an object, got {type(row).__name__}")
            row = _absolute(row, path.parent)
            tasks.append(task_for(settings, row))
        except (ConfigError, TypeError, ValueError) as error:
            reason = f"{path}: row {number}: {error}"
            if not skip_invalid:
                raise ConfigError(f"{reason}; or set skip_invalid: true to leave such rows out") from error
            skipped.append(reason)
        else:
            rows.append(row)
    return Rows(rows, tuple(skipped), len({task.id for task in tasks}), tasks)


def _absolute(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Workers run in another directory: paths of task files are relative to the file of rows."""
    paths = {key: row[key] for key in (*FORMATS, "task_config_path") if isinstance(row.get(key), str)}
    return row | {key: str((folder / Path(value).expanduser()).resolve()) for key, value in paths.items()}


def read_rows(path: Path) -> list[Any]:
    """Return the rows of a JSON or JSON-lines file, unchecked. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        return json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not valid JSON or JSON lines: {error}") from None
