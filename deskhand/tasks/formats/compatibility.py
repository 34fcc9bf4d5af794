"""Classify the tasks of a foreign corpus: which run on this machine, and why the others do not.

Used by `deskhand tasks check-corpus` and `prefetch`; start with `check_compatibility`. Copied task files are byte for
byte the originals.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError
from deskhand.tasks.formats import cuagym, osworld, waa
from deskhand.tasks.formats.osworld import Corpus, Loaded
from deskhand.tasks.formats.probes import DesktopProbe, Failure, on_local_desktop
from deskhand.tasks.formats.requirements import (
    REQUIREMENT_TEXT,
    Kind,
    Requirement,
    Verdict,
    Which,
    find_in_guest,
    probes_of,
    requirements_of,
    verdict,
)

SOURCES = {"osworld": osworld.load_folder, "waa": waa.load_folder, "cuagym": cuagym.load_folder}
VERDICTS: tuple[Verdict, ...] = ("runnable", "missing files", "unsupported")
INDEX = "index.json"


@dataclass(frozen=True)
class ImportedTask:
    """One task of a corpus."""

    domain: str
    """Folder of the task file; of CUA-Gym's bundles their application."""
    loaded: Loaded[Any]
    requirements: tuple[Requirement, ...]

    @property
    def name(self) -> str:
        return f"{self.domain}/{self.loaded.path.stem}"

    @property
    def verdict(self) -> Verdict:
        return verdict(list(self.requirements))

    @property
    def reasons(self) -> str:
        """One clause for each kind of requirement, with its first detail and the number of others."""
        by_kind: dict[Kind, list[str]] = {}
        for each in self.requirements:
            by_kind.setdefault(each.kind, []).append(each.detail)
        return "; ".join(
            f"{REQUIREMENT_TEXT[kind]} ({details[0]}{f' and {len(details) - 1} more' if len(details) > 1 else ''})"
            for kind, details in by_kind.items()
        )


@dataclass(frozen=True)
class ImportReport:
    """A corpus with the requirements of each task."""

    tasks: tuple[ImportedTask, ...]
    corpus: Corpus[Any]

    def verdicts(self) -> dict[Verdict, int]:
        counts = Counter(task.verdict for task in self.tasks)
        return {name: counts[name] for name in VERDICTS}

    def kinds(self) -> dict[Kind, int]:
        """Return the number of tasks by kind of requirement, most frequent first."""
        counts: Counter[Kind] = Counter()
        for task in self.tasks:
            counts.update({each.kind for each in task.requirements})
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def data(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {
            "tasks": [
                {
                    "name": task.name,
                    "id": task.loaded.task.id,
                    "verdict": task.verdict,
                    "requirements": [{"kind": each.kind, "detail": each.detail} for each in task.requirements],
                }
                for task in self.tasks
            ],
            "invalid": [str(problem) for _, problems in self.corpus.unreadable for problem in problems],
            "verdicts": dict(self.verdicts()),
            "requirements": dict(self.kinds()),
        }


def check_compatibility(
    source: str, folder: Path, which: Which = find_in_guest, fails: Failure = on_local_desktop
) -> ImportReport:
    """Load a corpus and classify its tasks; `which` and `fails` are those of `requirements_of`.

    Raises `ConfigError` for an unknown source or without task files.
    """
    if source not in SOURCES:
        raise ConfigError(f"unknown source {source!r}; sources: {', '.join(SOURCES)}")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: folder not found")
    corpus: Corpus[Any] = SOURCES[source](folder)
    if source == "cuagym":
        built = cuagym.built_apps(folder)
        return ImportReport(
            tuple(
                ImportedTask(loaded.task.app_type, loaded, tuple(cuagym.requirements_of(loaded.task, built)))
                for loaded in corpus.tasks
            ),
            corpus,
        )
    if isinstance(fails, DesktopProbe):
        fails.run(probe.script for loaded in corpus.tasks for probe in probes_of(loaded.task))
    tasks = (
        ImportedTask(loaded.path.parent.name, loaded, tuple(requirements_of(loaded.task, which, fails)))
        for loaded in corpus.tasks
    )
    return ImportReport(tuple(tasks), corpus)


def copy_supported(report: ImportReport, out: Path) -> int:
    """Copy the tasks that are not unsupported to `out`/<domain>/ (bundles to `out`), and write an index of all; return
    the number copied.

    Raises `ConfigError` if `out` is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: is not an empty folder")
    copied = [task for task in report.tasks if task.verdict != "unsupported"]
    for task in copied:
        if task.loaded.path.is_dir():
            shutil.copytree(task.loaded.path, out / task.loaded.path.name)
            continue
        target = out / task.domain / task.loaded.path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(task.loaded.path, target)
    out.mkdir(parents=True, exist_ok=True)
    index = {
        task.name: {
            "id": task.loaded.task.id,
            "verdict": task.verdict,
            "requirements": [{"kind": each.kind, "detail": each.detail} for each in task.requirements],
        }
        for task in report.tasks
    }
    (out / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(copied)
