"""Ways of cheating: `python -m benchmarks.task_audit [--full] [--agents NAME,...] [FAMILY ...]`.

Plays the audit's cheats (`deskhand.tasks.audit_agents`) on one variant of each family: renamed windows, results from
another program, constants for formulas, developer tools, racing writers, ended programs, forged files and more. Prints
for each family and for each way how many were paid (a score above 0) and voided (no score). The default size plays six
families, `--full` all families of `basics` and `web` and the task files of docs, examples and tests. The name `miniwob`
stands for all pages of MiniWoB++, whose rewards come from the page (`guest_trusted`).

Interrupted by Ctrl-C, it prints what it has played; the next run of the same sources resumes there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import structlog

from benchmarks.result_cache import ResultCache, digest_of, family_digest
from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.api import load_tasks
from deskhand.errors import DeskhandError
from deskhand.recipes.audit_tasks import audit_tasks
from deskhand.tasks.audit import AuditResult
from deskhand.tasks.audit_agents import LIMITS, NO_CHEATS
from deskhand.tasks.formats.yaml_task import load_task
from deskhand.tasks.suites import basics, family_registry, miniwob, web
from deskhand.tasks.task import Task

SEED = 3
SOURCES = ("deskhand/tasks/*.py", "deskhand/tasks/cheats/*.py", "deskhand/tasks/checks/*.py")
SOURCES += ("deskhand/desktop/**/*.py", "deskhand/actions/**/*.py")
FILE_SOURCES = ("deskhand/tasks/**/*.py", "examples/own_task.*", "tests/tasks/files/*.yaml")
MIN_WAYS = 30
SMALL = ("terminal_run", "dialog_choice", "form_fill", "page_form", "sheet_total", "miniwob/click-button")
SMOKE_AGENTS = ("near_miss", "x_retitle", "kill_all")
FILES = ("examples/own_task.yaml", "tests/tasks/files/shopping.yaml")
PYTHON_SUITE = "examples/own_task.py"
HEAD = "| task | oracle | ways | paid | voided | which | took |\n| --- | --- | --- | --- | --- | --- | --- |"
WAYS_HEAD = "| way | tasks | paid | voided |\n| --- | --- | --- | --- |"


def tasks_of(size: str, names: list[str]) -> list[Task]:
    """Return the tasks to play."""
    every = [*basics.FAMILIES, *web.FAMILIES, *FILES, PYTHON_SUITE]
    names = names or {"smoke": list(SMALL[:1]), "small": list(SMALL)}.get(size, every)
    found: list[Task] = []
    for name in itertools.chain(*(miniwob.families() if name == "miniwob" else (name,) for name in names)):
        if name.endswith(".py"):
            found += load_tasks(str(ROOT / name)).tasks()
        elif name.endswith(".yaml"):
            found.append(load_task(ROOT / name))
        else:
            found.append(family_registry.make_task(name, SEED))
    return found


def sources_of(task: Task) -> str:
    """Return a digest of what a task is made of, apart from `SOURCES`."""
    if task.family in basics.FAMILIES:
        return family_digest(task.family)
    if task.family in web.FAMILIES:  # the package itself has their near misses
        return f"{family_digest(task.family)} {digest_of([Path(web.__file__)])}"
    return digest_of(file for source in FILE_SOURCES for file in ROOT.glob(source))


async def audit_once(task: Task, agents: list[str]) -> tuple[list[AuditResult], list[str]]:
    """Audit a task; if a desktop cannot be leased or set up, try once more."""
    why: list[str] = []
    for _ in range(2):
        try:
            return await audit_tasks([task], agents, None, lambda line: None)
        except (DeskhandError, OSError) as error:
            why = [f"{task.id}: not audited: {error}"]
    return [], why


async def play(
    tasks: list[Task], agents: list[str], concurrency: int, cache: ResultCache | None
) -> tuple[list[AuditResult], list[str], int]:
    """Audit the tasks; return their results, what was skipped or failed, and the number of results of earlier runs."""
    left, results, skipped, num_kept = tasks[::-1], list[AuditResult](), list[str](), 0

    async def work() -> None:
        nonlocal num_kept
        while left:
            task, began = left.pop(), time.monotonic()
            key = f"{task.id} {sources_of(task)} {' '.join(agents)}"
            kept = cache.get(key) if cache else None
            if kept is not None:
                num_kept += 1
                found, why, took_s = [AuditResult(**kept["audit"])], [], kept["took_s"]
            else:
                found, why = await audit_once(task, agents)
                took_s = round(time.monotonic() - began)
                if cache:
                    for result in found:
                        cache.put(key, {"audit": asdict(result), "took_s": took_s})
            results.extend(found)
            skipped.extend(why)
            for result in found:
                which = ", ".join(name for name, value in result.cheats.items() if value is None or value)
                oracle = result.values.get("oracle", "-")
                cells = oracle, len(result.cheats), result.num_paid, result.num_voided, which
                print(f"| {task.id} | {' | '.join(map(str, cells))} | {took_s} s |", flush=True)

    try:
        await asyncio.gather(*(work() for _ in range(concurrency)))
    except asyncio.CancelledError:
        skipped.append(f"interrupted: {len(tasks) - len(results)} tasks were not audited")
    return results, skipped, num_kept


def main() -> None:
    parser = parser_of(__doc__, "every family of `basics` and `web`, and the task files")
    parser.add_argument(
        "names", nargs="*", metavar="FAMILY", help="families, task files, or `miniwob` (default: by size)"
    )
    parser.add_argument("--agents", default="", help="comma-separated audit agents (default: all cheats)")
    parser.add_argument("--concurrency", type=int, default=4, help="desktops at a time (default: 4)")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    cheats = [name for name in LIMITS if name not in NO_CHEATS]
    chosen = [name for name in arguments.agents.split(",") if name]
    agents = chosen or (list(SMOKE_AGENTS) if arguments.size == "smoke" else cheats)
    print_head()
    print(HEAD)
    tasks = tasks_of(arguments.size, arguments.names)
    cache = ResultCache("task_audit", SOURCES) if arguments.size == "full" else None
    results, skipped, num_kept = asyncio.run(play(tasks, agents, arguments.concurrency, cache))
    tried = Counter(name for result in results for name in result.cheats)
    paid = Counter(name for result in results for name, value in result.cheats.items() if value)
    voided = Counter(name for result in results for name, value in result.cheats.items() if value is None)
    print(f"\n{WAYS_HEAD}")
    for name in LIMITS:
        if tried[name]:
            print(f"| {name} | {tried[name]} | {paid[name]} | {voided[name]} |")
    wrong = [line for result in results for line in result.violations]
    kept = [f"{num_kept} of {len(results)} results are of earlier runs of the same sources"] if num_kept else []
    print("\n".join(["", *kept, *skipped, *wrong, ""]))
    thresholds = Thresholds()
    if agents == cheats:
        thresholds.check("ways of cheating", len(cheats) >= MIN_WAYS, str(len(cheats)), f"at least {MIN_WAYS}")
    unsolved = [result.task for result in results if result.values.get("oracle", 1.0) != 1.0]
    thresholds.check("oracles that were not paid", not unsolved, ", ".join(unsolved) or "none", "none")
    thresholds.check("cheats that were paid", not paid, f"{paid.total()} of {tried.total()}", "0")
    thresholds.check("cheats that voided the episode", not voided, f"{voided.total()} of {tried.total()}", "0")
    thresholds.check("tasks that were audited", not skipped, f"{len(results)} of {len(tasks)}", "all")
    thresholds.finish()


if __name__ == "__main__":
    main()
