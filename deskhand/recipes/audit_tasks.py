"""Audits of tasks on real desktops: every task's oracle and audit agents, one after the other.

Used by `deskhand tasks audit` and `benchmarks.task_audit`; start with `select_tasks` and `audit_tasks`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from deskhand.desktop.applications.install import missing
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks import audit as agents_of
from deskhand.tasks.audit import AuditResult
from deskhand.tasks.formats import python_file, task_files
from deskhand.tasks.formats.yaml_task import load_task
from deskhand.tasks.suites import basics, family_registry
from deskhand.tasks.task import Task, seed_for


def select_tasks(names: list[str] | None, variants: int, packages: dict[str, tuple[str, ...]]) -> list[Task]:
    """Return the tasks of families and files (None: all basics families).

    Adds the Debian packages of families of Python files to `packages`.
    """
    return [task for name in names or basics.FAMILIES for task in _tasks_of(name, variants, packages)]


def _tasks_of(name: str, variants: int, packages: dict[str, tuple[str, ...]]) -> list[Task]:
    """Variants of a family, or the one task of a YAML file; adds the packages of families of Python files."""
    if python_file.names_python_file(name):
        _, families = python_file.select_families(name)
        packages |= {family.name: family.applications for family in families}
        return [family.generate(seed_for("train", index)) for family in families for index in range(variants)]
    if Path(name).suffix in task_files.SUFFIXES:
        return [load_task(Path(name))]
    return [family_registry.make_task(name, seed_for("train", index)) for index in range(variants)]


def packages_of(task: Task) -> tuple[str, ...]:
    """Debian packages required by a task's family."""
    return family_registry.applications_of(task.family) if task.suite in family_registry.SUITES else ()


async def audit_tasks(
    tasks: list[Task],
    agents: list[str],
    save_end_states: Path | None,
    log: Callable[[str], None],
    packages: Mapping[str, tuple[str, ...]] = {},
) -> tuple[list[AuditResult], list[str]]:
    """Audit the tasks whose applications are installed; returns their results and why others were skipped.

    `packages` are the Debian packages of families by name; those of bundled families are known.
    """
    results: list[AuditResult] = []
    skipped: list[str] = []
    desktop = LocalDesktop()

    @asynccontextmanager
    async def lease(task: Task) -> AsyncIterator[LocalDesktop]:
        nonlocal desktop
        await desktop.close()  # every session gets a new desktop
        desktop = LocalDesktop()
        await desktop.reset(DesktopSpec(task.theme, task.width, task.height, accessibility=task.accessibility))
        yield desktop

    width = max(len(task.id) for task in tasks) if tasks else 0
    log(agents_of.table_header(width))
    try:
        for task in tasks:
            required = packages[task.family] if task.family in packages else packages_of(task)
            if not_installed := missing(list(required)):
                skipped.append(f"{task.id}: skipped, {' '.join(not_installed)} not installed")
                continue
            results.append(await agents_of.audit(task, lease, agents, save_end_states))
            log(results[-1].table_row(width))
    finally:
        await desktop.close()
    return results, skipped
