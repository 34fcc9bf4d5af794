"""What each task family costs and whether its oracle solves it: `python -m benchmarks.tasks` (`--full`: 50 variants a family).

Half of the variants are training seeds, half held-out ones. For each: a fresh desktop, set-up, the oracle, the judge; then the same
with the oracle's first click on the wrong thing, or its last step left out. Printed: oracle episodes that score 1, misled ones
that score 1, start states
that score above 0, median seconds of reset, set-up and play, and steps. Exits with 1 when an oracle fails or a misled one passes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass, field

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks.family_checks import Playthrough, near_miss, oracle, play
from deskhand.tasks.outcome import Errored
from deskhand.tasks.suites.basics import FAMILIES
from deskhand.tasks.task import Family, seed_for


@dataclass
class Tally:
    """Trials of one family; `reset_s` are seconds from a used desktop to a fresh one."""

    solved: list[Playthrough] = field(default_factory=list)
    misled: list[Playthrough] = field(default_factory=list)
    reset_s: list[float] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(trial.value == 1.0 and trial.baseline == 0.0 for trial in self.solved) and not self.wrongly_passed

    @property
    def wrongly_passed(self) -> int:
        return sum(trial.value == 1.0 for trial in self.misled)


async def measure(family: Family, variants: int, desktop: LocalDesktop) -> Tally:
    tally = Tally()
    for index in range(variants):
        task = family.generate(seed_for("train" if index % 2 == 0 else "held_out", index // 2))
        for trials in (tally.solved, tally.misled):
            before = time.monotonic()
            await desktop.reset(DesktopSpec(task.theme, task.width, task.height))
            tally.reset_s.append(time.monotonic() - before)
            trials.append(await play(task, desktop, oracle if trials is tally.solved else near_miss(tally.solved[-1])))
            outcome = trials[-1].outcome
            if isinstance(outcome, Errored):
                print(f"{task.id}: unscored, {outcome.cause}: {outcome.message}")
            elif trials is tally.solved and outcome.value < 1.0:
                print(f"{task.id}: the oracle scores {outcome.value:g}")
    return tally


def row(family: Family, tally: Tally) -> str:
    count = len(tally.solved)
    solved = sum(trial.value == 1.0 for trial in tally.solved)
    started = sum(trial.baseline > 0 for trial in tally.solved)
    seconds = (tally.reset_s, [trial.setup_s for trial in tally.solved], [trial.play_s for trial in tally.solved])
    columns = " ".join(f"{statistics.median(values):8.2f}" for values in seconds)
    steps = statistics.mean(trial.steps for trial in tally.solved)
    return f"{family.name:18} {solved:4d}/{count:<4d} {tally.wrongly_passed:4d}/{count:<4d} {started:6d} {columns} {steps:6.1f}"


async def run(names: list[str], variants: int) -> int:
    print(f"{platform.machine()}, {os.cpu_count()} cores, {variants} variants a family")
    print("family                oracle    misled  start>0  reset s set-up s  play s  steps")
    failed = 0
    desktop = LocalDesktop()
    try:
        for name in names:
            tally = await measure(FAMILIES[name], variants, desktop)
            failed += not tally.passed
            print(row(FAMILIES[name], tally), flush=True)
    finally:
        await desktop.close()
    return 1 if failed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="50 variants a family instead of 4")
    parser.add_argument("--family", nargs="+", choices=sorted(FAMILIES), default=list(FAMILIES))
    options = parser.parse_args()
    sys.exit(asyncio.run(run(options.family, 50 if options.full else 4)))


if __name__ == "__main__":
    main()
