"""Honest ways to do the tasks of `basics`, all paid: `python -m benchmarks.alternatives` (`--full` for all ways).

Plays, on local desktops, what a person would do instead of what the oracle does: menus, context menus, shortcuts,
buttons, drags, the keyboard only, another order; then the oracle on a desktop that tells its texts, where it may act on
nothing that the instruction or a frame did not show (`deskhand.tasks.oracle_sight`).

Thresholds: at least three ways for each family, every way scores 1, no oracle acts on what it has not seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from benchmarks.thresholds import Thresholds, parser_of, print_head
from benchmarks.ways import WAYS
from benchmarks.ways.person import play_way
from deskhand.desktop.applications.install import missing
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import DeskhandError
from deskhand.tasks.oracle_sight import needs_frames, unread_texts
from deskhand.tasks.outcome import Errored
from deskhand.tasks.suites.basics import FAMILIES
from deskhand.tasks.task import Task, seed_for

WANTED = 3
SMOKE = ("terminal_run",)


def spec_of(task: Task) -> DesktopSpec:
    """Return a desktop that tells its texts: ways find menus and buttons by their names."""
    return DesktopSpec(task.theme, task.width, task.height, accessibility=True)


async def play(task: Task, name: str) -> tuple[float, str]:
    """Play one way on a fresh desktop; return its score and what was wrong."""
    desktop = LocalDesktop()
    try:
        await desktop.reset(spec_of(task))
        outcome, acts = await play_way(task, desktop, WAYS[task.family](task)[name])
    except (DeskhandError, AssertionError) as error:
        return 0.0, f"{type(error).__name__}: {error}"[:300]
    finally:
        await desktop.close()
    if isinstance(outcome, Errored):
        return 0.0, f"errored ({outcome.cause}: {outcome.message})"
    wrong = "; ".join(f"{each.clause}: {each.read} instead of {each.expected}" for each in outcome.failed)
    return outcome.value, wrong or f"{acts} operations"


async def unseen(task: Task) -> list[str]:
    """Return what the oracle acted on and had not seen; replays it where only frames can tell."""
    steps = []
    for spec in (DesktopSpec(task.theme, task.width, task.height), spec_of(task)):
        desktop = LocalDesktop()
        try:
            await desktop.reset(spec)
            await task.setup(desktop)
            if spec.accessibility:
                return await unread_texts(task, desktop, steps)
            async for ops in task.oracle(desktop):
                await desktop.perform(ops, action_id=f"oracle#{len(steps)}")
                steps.append(ops)
            if not needs_frames(task, await task.resolve_instruction(desktop), steps):
                return []
        except DeskhandError as error:
            return [f"{type(error).__name__}: {error}"[:300]]
        finally:
            await desktop.close()
    return []


async def run(size: str, names: Iterable[str], seed: int, parts: str) -> Thresholds:
    thresholds = Thresholds()
    few, unpaid, sightless, played = [], [], [], 0
    print("| family | way | score | seconds | note |\n| --- | --- | --- | --- | --- |", flush=True)
    for name in SMOKE if size == "smoke" else names:
        task = FAMILIES[name].generate(seed)
        if lacking := missing(list(FAMILIES[name].applications)):
            thresholds.check(f"applications of {name}", False, f"not installed: {' '.join(lacking)}", "installed")
            continue
        ways = WAYS[name](task)
        if len(ways) < WANTED:
            few.append(name)
        chosen = list(ways) if size == "full" else list(ways)[:1]
        for way in chosen if "ways" in parts else []:
            began = time.monotonic()
            score, note = await play(task, way)
            played += 1
            print(f"| {name} | {way} | {score:g} | {time.monotonic() - began:.0f} | {note} |", flush=True)
            if score != 1.0:
                unpaid.append(f"{name}: {way}")
        if "oracles" in parts:
            wrong = await unseen(task)
            print(f"| {name} | the oracle | | | {'; '.join(wrong) or 'acts on what it has seen'} |", flush=True)
            sightless += [name] if wrong else []
    thresholds.check(f"families with at least {WANTED} ways", not few, ", ".join(few) or "all", "all")
    thresholds.check(f"{played} honest ways are paid", not unpaid, "; ".join(unpaid) or "all", "all")
    thresholds.check("oracles act on what was shown", not sightless, ", ".join(sightless) or "all", "all")
    return thresholds


def main() -> None:
    parser = parser_of(__doc__, "every way instead of one for each family")
    parser.add_argument("--families", nargs="+", default=sorted(FAMILIES), choices=sorted(FAMILIES), metavar="NAME")
    parser.add_argument("--seed", type=int, default=seed_for("test", 0))
    parser.add_argument("--parts", nargs="+", default=["ways", "oracles"], choices=["ways", "oracles"])
    options = parser.parse_args()
    print_head()
    asyncio.run(run(options.size, options.families, options.seed, options.parts)).finish()


if __name__ == "__main__":
    main()
