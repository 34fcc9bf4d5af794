"""Honest ways to do the tasks of `basics` and `web`, all paid: `python -m benchmarks.alternatives` (`--full`: all).

Plays, on local desktops, what a person would do instead of what the oracle does: menus, context menus, shortcuts,
buttons, drags, the keyboard only, another order; then the oracle on a desktop that tells its texts, where it may act on
nothing that the instruction or a frame did not show (`deskhand.tasks.oracle_sight`).

Results of ways are kept while the sources are unchanged, so that an interrupted run resumes; failed ones are not.

Thresholds: at least three ways for each family, every way scores 1, no oracle acts on what it has not seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from benchmarks.result_cache import ResultCache, family_digest
from benchmarks.thresholds import Thresholds, parser_of, print_head
from benchmarks.ways import WAYS
from benchmarks.ways.person import play_way
from deskhand.desktop.applications.install import missing
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import DeskhandError
from deskhand.tasks.oracle_sight import needs_frames, unread_texts
from deskhand.tasks.outcome import Errored
from deskhand.tasks.suites import basics, web
from deskhand.tasks.task import Task, seed_for

WANTED = 3
FAMILIES = basics.FAMILIES | web.FAMILIES
SOURCES = ("deskhand/tasks/*.py", "deskhand/tasks/cheats/*.py", "deskhand/tasks/checks/*.py")
SOURCES += ("deskhand/desktop/**/*.py", "deskhand/actions/**/*.py")
SMOKE = ("terminal_run",)


def spec_of(task: Task) -> DesktopSpec:
    """Return a desktop that tells its texts: ways find menus and buttons by their names."""
    return DesktopSpec(task.theme, task.width, task.height, accessibility=True)


async def play(task: Task, name: str, *, tries: int = 2) -> tuple[float, str]:
    """Play one way on a fresh desktop; return its score and what was wrong. A desktop that was lost is replaced."""
    desktop = LocalDesktop()
    try:
        await desktop.reset(spec_of(task))
        outcome, acts = await play_way(task, desktop, WAYS[task.family](task)[name])
    except (DeskhandError, AssertionError, OSError) as error:
        if tries > 1 and await is_lost(desktop):
            score, note = await play(task, name, tries=tries - 1)
            return score, f"{note}; an earlier desktop was lost ({error})"
        return 0.0, f"{type(error).__name__}: {error}"[:300]
    finally:
        await desktop.close()
    if isinstance(outcome, Errored):
        return 0.0, f"errored ({outcome.cause}: {outcome.message})"
    wrong = "; ".join(f"{each.clause}: {each.read} instead of {each.expected}" for each in outcome.failed)
    return outcome.value, wrong or f"{acts} operations"


async def is_lost(desktop: LocalDesktop) -> bool:
    """Return whether a desktop has ended, which no way of a person does."""
    try:
        await desktop.windows()
    except DeskhandError:
        return True
    return False


def sources_of(task: Task) -> str:
    """Return a digest of the modules of a family and of its ways."""
    return f"{family_digest(task.family)} {family_digest(task.family, 'benchmarks.ways')}"


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


@dataclass
class Findings:
    """What was wrong, and the number of ways that were played."""

    cache: ResultCache | None = None
    unpaid: list[str] = field(default_factory=list)
    sightless: list[str] = field(default_factory=list)
    played: int = 0
    kept: int = 0
    """Number of results of earlier runs."""

    async def play_way(self, task: Task, way: str) -> None:
        key, began = f"{task.id} {sources_of(task)}: {way}", time.monotonic()
        self.played += 1
        if self.cache and (kept := self.cache.get(key)) is not None:
            self.kept += 1
            print(f"| {task.family} | {way} | 1 | {kept['took_s']} | {kept['note']} |", flush=True)
            return
        score, note = await play(task, way)
        if self.cache and score == 1.0:
            self.cache.put(key, {"note": note, "took_s": round(time.monotonic() - began)})
        print(f"| {task.family} | {way} | {score:g} | {time.monotonic() - began:.0f} | {note} |", flush=True)
        if score != 1.0:
            self.unpaid.append(f"{task.family}: {way}")

    async def play_oracle(self, task: Task) -> None:
        key, began = f"{task.id} {family_digest(task.family)}: the oracle", time.monotonic()
        if self.cache and (kept := self.cache.get(key)) is not None:
            self.kept += 1
            print(f"| {task.family} | the oracle | | {kept['took_s']} | acts on what it has seen |", flush=True)
            return
        wrong = await unseen(task)
        if self.cache and not wrong:
            self.cache.put(key, {"took_s": round(time.monotonic() - began)})
        note = "; ".join(wrong) or "acts on what it has seen"
        print(f"| {task.family} | the oracle | | {time.monotonic() - began:.0f} | {note} |", flush=True)
        if wrong:
            self.sightless.append(task.family)


async def run(size: str, names: Iterable[str], seed: int, parts: str, concurrency: int) -> Thresholds:
    cache = ResultCache("alternatives", SOURCES) if size == "full" else None
    thresholds, findings = Thresholds(), Findings(cache)
    jobs, few = list[Callable[[], Awaitable[None]]](), list[str]()
    for name in SMOKE if size == "smoke" else names:
        task = FAMILIES[name].generate(seed)
        if lacking := missing(list(FAMILIES[name].applications)):
            thresholds.check(f"applications of {name}", False, f"not installed: {' '.join(lacking)}", "installed")
            continue
        ways = WAYS[name](task)
        if len(ways) < WANTED:
            few.append(name)
        if "ways" in parts:
            jobs += [partial(findings.play_way, task, way) for way in (ways if size == "full" else list(ways)[:1])]
        if "oracles" in parts:
            jobs.append(partial(findings.play_oracle, task))
    print("| family | way | score | seconds | note |\n| --- | --- | --- | --- | --- |", flush=True)
    left = jobs[::-1]

    async def work() -> None:
        while left:
            await left.pop()()

    try:
        await asyncio.gather(*(work() for _ in range(concurrency)))
    except asyncio.CancelledError:
        print(f"interrupted: {len(left)} of {len(jobs)} were not begun; the next run of the same sources resumes here")
    if findings.kept:
        print(f"\n{findings.kept} of {len(jobs)} results are of earlier runs of the same sources")
    unpaid, sightless = findings.unpaid, findings.sightless
    thresholds.check("ways and oracles that were played", not left, f"{len(jobs) - len(left)} of {len(jobs)}", "all")
    thresholds.check(f"families with at least {WANTED} ways", not few, ", ".join(few) or "all", "all")
    thresholds.check(f"{findings.played} honest ways are paid", not unpaid, "; ".join(unpaid) or "all", "all")
    thresholds.check("oracles act on what was shown", not sightless, ", ".join(sightless) or "all", "all")
    return thresholds


def main() -> None:
    parser = parser_of(__doc__, "every way instead of one for each family")
    parser.add_argument("--families", nargs="+", default=sorted(FAMILIES), choices=sorted(FAMILIES), metavar="NAME")
    parser.add_argument("--seed", type=int, default=seed_for("test", 0))
    parser.add_argument("--parts", nargs="+", default=["ways", "oracles"], choices=["ways", "oracles"])
    parser.add_argument("--concurrency", type=int, default=3, help="desktops at a time (default: 3)")
    options = parser.parse_args()
    print_head()
    asyncio.run(run(options.size, options.families, options.seed, options.parts, options.concurrency)).finish()


if __name__ == "__main__":
    main()
