"""A foreign corpus, task by task: what can run here and why the rest cannot. Invariant: a task that is written out is the file that
was read, byte for byte.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError
from deskhand.tasks.formats import osworld, waa
from deskhand.tasks.formats.osworld import Corpus, Loaded
from deskhand.tasks.formats.requirements import (
    REQUIREMENT_TEXT,
    Kind,
    Requirement,
    Verdict,
    Which,
    requirements_of,
    verdict,
)

SOURCES = {"osworld": osworld.load_folder, "waa": waa.load_folder}
VERDICTS: tuple[Verdict, ...] = ("runnable here", "needs files", "not here")
INDEX = "index.json"


@dataclass(frozen=True)
class ImportedTask:
    """One task of a corpus."""

    domain: str
    """The folder that the file lies in."""
    loaded: Loaded[Any]
    needs: tuple[Requirement, ...]

    @property
    def name(self) -> str:
        return f"{self.domain}/{self.loaded.path.stem}"

    @property
    def verdict(self) -> Verdict:
        return verdict(list(self.needs))

    @property
    def reasons(self) -> str:
        """One clause for each kind of need, with the first detail of the kind and how many more there are."""
        by_kind: dict[Kind, list[str]] = {}
        for need in self.needs:
            by_kind.setdefault(need.kind, []).append(need.detail)
        return "; ".join(
            f"{REQUIREMENT_TEXT[kind]} ({details[0]}{f' and {len(details) - 1} more' if len(details) > 1 else ''})"
            for kind, details in by_kind.items()
        )


@dataclass(frozen=True)
class ImportReport:
    """A corpus with what each of its tasks needs."""

    tasks: tuple[ImportedTask, ...]
    corpus: Corpus[Any]

    def verdicts(self) -> dict[Verdict, int]:
        counts = Counter(task.verdict for task in self.tasks)
        return {name: counts[name] for name in VERDICTS}

    def kinds(self) -> dict[Kind, int]:
        """How many tasks have a need of each kind, most frequent first."""
        counts: Counter[Kind] = Counter()
        for task in self.tasks:
            counts.update({need.kind for need in task.needs})
        return {kind: count for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))}


def check_compatibility(source: str, folder: Path, which: Which = shutil.which) -> ImportReport:
    """Load a corpus and classify its tasks. Raises `ConfigError` for an unknown source or a folder without task files."""
    if source not in SOURCES:
        raise ConfigError(f"source {source!r} is not known; there are {', '.join(SOURCES)}")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give a checkout, or a folder with its task files")
    corpus = SOURCES[source](folder)
    tasks = (
        ImportedTask(loaded.path.parent.name, loaded, tuple(requirements_of(loaded.task, which)))
        for loaded in corpus.tasks
    )
    return ImportReport(tuple(tasks), corpus)


def write(report: ImportReport, out: Path) -> int:
    """Copy the tasks that run here, at once or with their files, to `out`/<domain>/, and an index of all; returns how many were
    copied. Raises `ConfigError` when `out` holds something already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not an empty folder; name a new one")
    chosen = [task for task in report.tasks if task.verdict != "not here"]
    for task in chosen:
        target = out / task.domain / task.loaded.path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(task.loaded.path, target)
    out.mkdir(parents=True, exist_ok=True)
    index = {
        task.name: {
            "id": task.loaded.task.id,
            "verdict": task.verdict,
            "needs": [{"kind": need.kind, "detail": need.detail} for need in task.needs],
        }
        for task in report.tasks
    }
    (out / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(chosen)
