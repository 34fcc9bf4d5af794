"""The command `deskhand tasks audit`. Invariant: every agent plays on a desktop that was reset for its session, and what fails is
named after the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from deskhand.desktop.applications.install import missing
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks import audit as agents_of
from deskhand.tasks.audit import AuditResult
from deskhand.tasks.formats import task_files
from deskhand.tasks.formats.yaml_task import load_task
from deskhand.tasks.suites import basics, family_registry, miniwob
from deskhand.tasks.task import Family, Task, seed_for

WRONG = 2


def audit(
    families: list[str] | None = None, /, *, variants: int = 1, agents: str = "", keep: Path | None = None
) -> None:
    """Let agents try to be paid without doing the task, on real desktops, and print what each scores.

    The oracle must score 1; agents that do nothing, click at random or cheat must score 0, those that do nearly the whole task
    less than 1. Exits with 2 when one does not.

    Parameters
    ----------
    families
        Which families, or task files in Deskhand's YAML; all of the suite `basics` whose applications are installed when none
        is named.
    variants
        How many training seeds of each.
    agents
        Names of agents with commas between them; all when empty. The oracle always plays.
    keep
        A folder for the end states, for `deskhand rejudge`.
    """
    names = families or list(basics.FAMILIES)
    tasks = [task for name in names for task in _tasks(name, variants)]
    chosen = [name for name in agents.split(",") if name]
    rows, skipped = asyncio.run(run(tasks, chosen, keep, print))
    for line in skipped:
        print(line)
    wrong = [line for row in rows for line in row.violations]
    print(f"{len(rows)} tasks, {len(skipped)} left out, {len(wrong)} scores that must not be")
    for line in wrong:
        print(line)
    if wrong:
        raise SystemExit(WRONG)


def _tasks(name: str, variants: int) -> list[Task]:
    """Variants of a family, or the one task of a file."""
    if Path(name).suffix in task_files.SUFFIXES:
        return [load_task(Path(name))]
    return [family_registry.make_task(name, seed_for("train", index)) for index in range(variants)]


def packages_of(task: Task) -> tuple[str, ...]:
    """Debian packages that a task's family needs."""
    found: Family | None = basics.FAMILIES.get(task.family)
    return found.applications if found is not None else ("chromium",) if task.suite == miniwob.SUITE else ()


async def run(
    tasks: list[Task], agents: list[str], keep: Path | None, say: Callable[[str], None]
) -> tuple[list[AuditResult], list[str]]:
    """The rows of the tasks that could be played, said as they come, and why others could not."""
    rows: list[AuditResult] = []
    skipped: list[str] = []
    desktop = LocalDesktop()

    @asynccontextmanager
    async def lease(task: Task) -> AsyncIterator[LocalDesktop]:
        nonlocal desktop
        await desktop.close()  # what one session did to its desktop is no other's
        desktop = LocalDesktop()
        await desktop.reset(DesktopSpec(task.theme, task.width, task.height, accessibility=task.accessibility))
        yield desktop

    width = max(len(task.id) for task in tasks) if tasks else 0
    say(agents_of.table_header(width))
    try:
        for task in tasks:
            if lacking := missing(list(packages_of(task))):
                skipped.append(f"{task.id}: left out, {' '.join(lacking)} not installed")
                continue
            rows.append(await agents_of.audit(task, lease, agents, keep))
            say(rows[-1].table_row(width))
    finally:
        await desktop.close()
    return rows, skipped
