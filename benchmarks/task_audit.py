"""Ways of cheating: `python -m benchmarks.task_audit [--full] [--agents NAME,...] [FAMILY ...]`.

Plays the audit's agents (`deskhand.tasks.audit_agents`) on one variant of each family: renamed windows, results from
another program, constants for formulas, developer tools, racing writers, ended programs, forged files and more. Prints
for each family and for each way how many were paid (a score above 0) and voided (no score). The default size plays six
families, `--full` all families of `basics` and MiniWoB++, and the task files of docs, examples and tests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

import structlog

from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.api import load_tasks
from deskhand.cli.audit import audit_tasks
from deskhand.errors import DeskhandError
from deskhand.tasks.audit import AuditResult
from deskhand.tasks.audit_agents import LIMITS, NO_CHEATS
from deskhand.tasks.formats.yaml_task import load_task
from deskhand.tasks.suites import basics, family_registry, miniwob
from deskhand.tasks.task import Task

SEED = 3
MIN_WAYS = 30
SMALL = ("terminal_run", "dialog_choice", "form_fill", "page_form", "sheet_total", "miniwob/click-button")
SMOKE_AGENTS = ("near_miss", "x_retitle", "kill_all")
FILES = ("examples/own_task.yaml", "tests/tasks/files/shopping.yaml")
PYTHON_SUITE = "examples/own_task.py"
HEAD = "| task | oracle | ways | paid | voided | which | took |\n| --- | --- | --- | --- | --- | --- | --- |"
WAYS_HEAD = "| way | tasks | paid | voided |\n| --- | --- | --- | --- |"


def tasks_of(size: str, names: list[str]) -> list[Task]:
    """Return the tasks to play."""
    if not names:
        suites = [*basics.FAMILIES, *(miniwob.families() if miniwob.unavailable_reason() is None else ())]
        names = {"smoke": list(SMALL[:1]), "small": list(SMALL)}.get(size) or [*suites, *FILES, PYTHON_SUITE]
    found: list[Task] = []
    for name in names:
        if name.endswith(".py"):
            found += load_tasks(str(ROOT / name)).tasks()
        elif name.endswith(".yaml"):
            found.append(load_task(ROOT / name))
        else:
            found.append(family_registry.make_task(name, SEED))
    return found


async def play(tasks: list[Task], agents: list[str], concurrency: int) -> tuple[list[AuditResult], list[str]]:
    """Audit the tasks; return their results and what was skipped or failed."""
    left, results, skipped = tasks[::-1], list[AuditResult](), list[str]()

    async def work() -> None:
        while left:
            task, began = left.pop(), time.monotonic()
            try:
                found, why = await audit_tasks([task], agents, None, lambda line: None)
            except DeskhandError as error:
                found, why = [], [f"{task.id}: not audited: {error}"]
            results.extend(found)
            skipped.extend(why)
            for result in found:
                which = ", ".join(name for name, value in result.cheats.items() if value is None or value)
                oracle = result.values.get("oracle", "-")
                cells = oracle, len(result.cheats), result.num_paid, result.num_voided, which
                print(f"| {task.id} | {' | '.join(map(str, cells))} | {time.monotonic() - began:.0f} s |", flush=True)

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return results, skipped


def main() -> None:
    parser = parser_of(__doc__, "every family of every bundled suite, and the task files")
    parser.add_argument("names", nargs="*", metavar="FAMILY", help="families, or task files (default: by size)")
    parser.add_argument("--agents", default="", help="comma-separated audit agents (default: all)")
    parser.add_argument("--concurrency", type=int, default=2, help="desktops at a time (default: 2)")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    agents = [name for name in arguments.agents.split(",") if name]
    if arguments.size == "smoke" and not agents:
        agents = list(SMOKE_AGENTS)
    print_head()
    print(HEAD)
    tasks = tasks_of(arguments.size, arguments.names)
    results, skipped = asyncio.run(play(tasks, agents, arguments.concurrency))
    tried = Counter(name for result in results for name in result.cheats)
    paid = Counter(name for result in results for name, value in result.cheats.items() if value)
    voided = Counter(name for result in results for name, value in result.cheats.items() if value is None)
    print(f"\n{WAYS_HEAD}")
    for name in LIMITS:
        if tried[name]:
            print(f"| {name} | {tried[name]} | {paid[name]} | {voided[name]} |")
    wrong = [line for result in results for line in result.violations]
    print("\n".join(["", *skipped, *wrong, ""]))
    thresholds = Thresholds()
    if not agents:
        ways = len(set(LIMITS) - NO_CHEATS)
        thresholds.check("ways of cheating", ways >= MIN_WAYS, str(ways), f"at least {MIN_WAYS}")
    thresholds.check("cheats that were paid", not paid, f"{paid.total()} of {tried.total()}", "0")
    thresholds.check("cheats that voided the episode", not voided, f"{voided.total()} of {tried.total()}", "0")
    thresholds.check("tasks that were audited", not skipped, f"{len(results)} of {len(tasks)}", "all")
    thresholds.finish()


if __name__ == "__main__":
    main()
