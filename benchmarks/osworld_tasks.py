"""OSWorld tasks on a local desktop: `python -m benchmarks.osworld_tasks` (`--full` for all tasks).

For each feasible task that needs no download, live web, systemd, software installation or VS Code: a fresh desktop is
set up by the task's own steps, a scripted solution acts by clicks and keys, and OSWorld's own metrics score it; then
again without acting. Tasks without a solution are listed with the reason. `--tasks` is the directory of task files
(`$DESKHAND_OSWORLD_TASKS`), which are not part of this project. `scripts/environment osworld-evaluators` creates the
evaluators' environment. Finally, 32 siblings of one task with different end states are evaluated concurrently and
sequentially.

Thresholds: at least 15 tasks whose solution scores 1 and whose no-op scores 0, including `chrome/bb5e4c0d-...`, and
identical outcomes of the siblings.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from benchmarks.osworld.scripted_actor import ScriptedActor
from benchmarks.osworld.sibling_episodes import outcomes
from benchmarks.osworld.solutions import REASONS, SOLUTIONS, Solution
from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import DeskhandError
from deskhand.osworld.scoring import default_official_evaluators
from deskhand.osworld.task import task_of
from deskhand.rollout.episode import desktop_spec
from deskhand.tasks.formats.compatibility import ImportedTask, check_compatibility
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import Task

WANTED = 15
SIBLINGS = 32
FIRST = "bb5e4c0d-f964-439c-97b6-bdb9747de3f4"
"""The task that AReaL's example for OSWorld trains on."""
OUTSIDE = frozenset({"file", "web", "account", "systemd", "packages", "unknown"})
"""Needs that put a task outside this benchmark."""


@dataclass(frozen=True)
class Played:
    """Score (None if there is none) and the reason."""

    score: float | None
    ops: int
    seconds: float
    note: str = ""

    @property
    def text(self) -> str:
        return "-" if self.score is None else f"{self.score:g}"


def candidates(folder: Path) -> list[ImportedTask]:
    """Return the feasible tasks in scope."""
    found = []
    for task in check_compatibility("osworld", folder).tasks:
        code = any(need.kind == "application" and need.detail.startswith("vs_code") for need in task.requirements)
        if not task.loaded.task.infeasible and not code and not OUTSIDE & {need.kind for need in task.requirements}:
            found.append(task)
    return sorted(
        found, key=lambda task: (task.loaded.task.id != FIRST, task.loaded.task.id not in SOLUTIONS, task.name)
    )


async def play(task: Task, solve: Solution | None) -> Played:
    """Set up, act and evaluate on a fresh desktop."""
    desktop = LocalDesktop()
    began = time.monotonic()
    actor = ScriptedActor(desktop, task.width, task.height)
    try:
        await desktop.reset(desktop_spec(task))
        await task.setup(desktop)
        if solve is not None:
            await solve(actor)
        outcome = await judge(task, desktop)
    except (DeskhandError, AssertionError) as error:
        return Played(None, len(actor.ops), time.monotonic() - began, f"{type(error).__name__}: {error}"[:300])
    finally:
        await desktop.close()
    seconds = time.monotonic() - began
    if isinstance(outcome, Scored):
        return Played(outcome.value, len(actor.ops), seconds)
    return Played(None, len(actor.ops), seconds, f"unscored ({outcome.cause}): {outcome.message}"[:300])


async def measure(imported: ImportedTask) -> tuple[Played, Played]:
    """Play the solution and a no-op."""
    made = task_of(imported.loaded.task, domain=imported.domain, accessibility=True)
    return await play(made, SOLUTIONS[imported.loaded.task.id]), await play(made, None)


async def run(folder: Path, most: int | None, only: list[str], siblings: int) -> Thresholds:
    thresholds = Thresholds()
    evaluators = default_official_evaluators()
    judged_by = "OSWorld's own" if evaluators is not None else "our versions of OSWorld's"
    tasks = [
        task for task in candidates(folder) if not only or any(task.loaded.task.id.startswith(name) for name in only)
    ]
    print(f"{len(tasks)} feasible tasks of {folder.name} need none of these; metrics: {judged_by}", flush=True)
    print("task | metrics | ops | solution | nothing | seconds | note", flush=True)
    passed, played = set[str](), 0
    for task in tasks:
        metrics = ", ".join(clause.metric for clause in task.loaded.task.evaluator.clauses)
        if task.loaded.task.id not in SOLUTIONS:
            reason = REASONS.get(task.loaded.task.id) or task.reasons or "no solution was written"
            print(f"{task.name} | {metrics} | | | | | {reason}", flush=True)
            continue
        if most is not None and played >= most:
            continue
        played += 1
        solved, nothing = await measure(task)
        note = "; ".join(filter(None, (solved.note, nothing.note)))
        seconds = f"{solved.seconds:.0f} + {nothing.seconds:.0f}"
        print(
            f"{task.name} | {metrics} | {solved.ops} | {solved.text} | {nothing.text} | {seconds} | {note}", flush=True
        )
        if (solved.score, nothing.score) == (1.0, 0.0):
            passed.add(task.loaded.task.id)
    wanted = min(WANTED, most) if most is not None else WANTED
    thresholds.check(
        "solved by its solution and not by doing nothing", len(passed) >= wanted, f"{len(passed)} tasks", f">= {wanted}"
    )
    thresholds.check(f"chrome/{FIRST} among them", FIRST in passed, str(FIRST in passed), "True")
    if evaluators is not None:  # nobody else has the metrics of this task
        together, alone = await outcomes(siblings)
        same = repr(together) == repr(alone)
        scores = sorted({outcome.value for outcome in together if isinstance(outcome, Scored)})
        scored = sum(isinstance(outcome, Scored) for outcome in together)
        figure = f"{scored} scored, {len(scores)} different scores, {'equal' if same else 'different'}"
        passed_as_one = same and len(scores) > siblings // 2
        thresholds.check(
            f"{siblings} siblings judged at once and one by one", passed_as_one, figure, "equal to the last bit"
        )
    thresholds.check("judged by OSWorld's own metrics", evaluators is not None, judged_by, "OSWorld's own")
    return thresholds


def main() -> None:
    parser = parser_of(__doc__, "every task with a solution instead of three")
    default = os.environ.get("DESKHAND_OSWORLD_TASKS", ROOT.parent / "shared" / "data" / "osworld")
    parser.add_argument("--tasks", type=Path, default=Path(default))
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="tasks whose id begins so")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print_head()
    most = {"smoke": 1, "small": 3, "full": None}[options.size]
    siblings = 2 if options.size == "smoke" else SIBLINGS
    asyncio.run(run(options.tasks, None if options.only else most, options.only, siblings)).finish()


if __name__ == "__main__":
    main()
