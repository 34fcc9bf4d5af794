"""SIGKILL at random moments: `python -m benchmarks.sigkill [--full] [--seed N]`.

Two oracle episodes run concurrently on local desktops (see `episodes.py`). Each round kills one component: an X
server, a window manager, an application launched by the setup, the process that owns the pool, or the desktop server
(`server_sigkill.py`). Then:

- the killed desktop's processes, and all with its owner's label, are gone within 60 s (`orphans`);
- exactly the episodes that used their desktop after the kill are errored or score 0 for it (`sigkill_report.py`);
- leases of a killed pool or server are released by its successor, rejected, and followed by higher epochs; the
  episodes of a killed pool are errored in the resumed run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from benchmarks.episodes import Stage, staged
from benchmarks.recording import EASY
from benchmarks.server_sigkill import held_in, server_round
from benchmarks.sigkill_report import GONE_WITHIN_S, Observed, Tally, gone, judge
from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.desktop.base import DesktopSpec, Lease, StageableDesktop
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.local import processes
from deskhand.desktop.local.runtime_dir import runtime
from deskhand.desktop.pool import DesktopPool
from deskhand.errors import InfrastructureError
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.run_writer import RunWriter
from deskhand.store.run import TRAIN, Run

PARTS = ("x server", "window manager", "applications")
VICTIMS = (*PARTS, "pool", "server")
"""What is killed, in turn."""
AT_A_TIME = 2
LONGEST_DELAY_S = 2.0
"""From the start of a round; one whose episodes ended before that is repeated."""


class ObservedPool(DesktopPool):
    """Pool that records which desktops each episode leased."""

    def __init__(self, size: int, lease_db: LeaseStore | None = None) -> None:
        super().__init__(size, prewarm=1, lease_store=lease_db)
        self.out: dict[int, tuple[Observed, str]] = {}

    async def lease(self, spec: DesktopSpec | None = None) -> Lease:
        task = asyncio.current_task()
        name = task.get_name() if task else ""
        lease = await super().lease(spec)
        observed = Observed(lease.desktop)
        self.out[lease.epoch] = (observed, name)
        return Lease(cast(StageableDesktop, observed), lease.epoch)

    async def release(self, lease: Lease) -> None:
        self.out.pop(lease.epoch, None)
        await super().release(lease)


async def part_round(
    stage: Stage, pool: ObservedPool, victim: str, number: int, chance: random.Random, tally: Tally
) -> None:
    """Play, kill one component of a leased desktop, and check the episodes."""
    requests = [
        EpisodeRequest(f"{number}-{index}", stage.task(number * AT_A_TIME + index)) for index in range(AT_A_TIME)
    ]
    playing = [asyncio.create_task(stage.runner.run(request), name=request.episode_id) for request in requests]
    delay_s, began = chance.uniform(0.0, LONGEST_DELAY_S), time.monotonic()
    killed: tuple[Observed, str] | None = None
    marked: list[int] = []
    while killed is None and not all(task.done() for task in playing):
        await asyncio.sleep(0.005)
        for observed, episode in pool.out.values():
            found = [pid for pid in observed.parts().get(victim, []) if processes.state(pid) not in ("", "Z")]
            if found and time.monotonic() - began >= delay_s:
                marked = observed.processes()
                processes.kill(chance.choice(found))
                killed = observed, episode
                break
    at = time.monotonic()
    results = await asyncio.gather(*playing)
    if killed is not None:
        tally.rounds[victim] += 1
        judge(results, [killed], at, victim, tally)
        await asyncio.to_thread(gone, marked, at, tally)


async def own(folder: Path) -> None:
    """Play episodes until killed, as the owner of a pool."""
    folder.mkdir(parents=True)  # noqa: ASYNC240 nothing runs yet
    print(runtime().token, runtime().folder, flush=True)

    def make_pool(size: int) -> DesktopPool:
        return ObservedPool(size, LeaseStore(folder / "leases.sqlite"))

    async with staged(folder / "run", EASY, AT_A_TIME, make_pool) as stage:
        await stage.play(10_000)


def pool_round(folder: Path, chance: random.Random, tally: Tally) -> None:
    """Kill the owner of a pool, then open its lease database and run as its successor."""
    lease_file = folder / "leases.sqlite"
    owner = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sigkill", "--own", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    token, desktops = owner.stdout.readline().split()
    while not held_in(lease_file):
        if owner.poll() is not None:
            raise InfrastructureError(f"the pool's owner ended with {owner.returncode} before it was killed")
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, LONGEST_DELAY_S))
    marked = processes.find_labeled(processes.OWNER_LABEL, token)
    at = time.monotonic()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    tally.rounds["pool"] += 1
    gone(marked, at, tally)
    while Path(desktops).exists() and time.monotonic() - at < GONE_WITHIN_S:
        time.sleep(0.01)
    tally.orphans += len(processes.find_labeled(processes.OWNER_LABEL, token)) + Path(desktops).exists()
    lease_db = LeaseStore(lease_file)
    tally.leases += len(lease_db.found)
    tally.unfenced += len(lease_db.rows("ended_at IS NULL"))
    if lease_db.found and lease_db.grant("next") <= max(row.epoch for row in lease_db.found):
        tally.unfenced += 1
    lease_db.close()
    with Run.open(folder / "run") as run:
        unfinished = {row.id for row in run.episodes(TRAIN) if row.state == "in_flight"}
        RunWriter(run).recover()
        after = {row.id: row for row in run.episodes(TRAIN)}
        tally.affected += len(unfinished)
        lost = {name: (after[name].state, after[name].cause) for name in unfinished}
        tally.wrong += [
            f"{name} (pool): {place}" for name, place in lost.items() if place != ("errored", "infrastructure")
        ]


async def rounds(folder: Path, count: int, seed: int) -> Tally:
    """Run `count` rounds, alternating victims."""
    chance, tally = random.Random(seed), Tally()
    token = runtime().token
    before = set(processes.find_labeled(processes.OWNER_LABEL, token))
    pools: list[ObservedPool] = []

    def make_pool(size: int) -> DesktopPool:
        pools.append(ObservedPool(size))
        return pools[-1]

    async with staged(folder / "parts", EASY, AT_A_TIME, make_pool) as stage:
        for number in range(8 * count):
            done = tally.rounds.total()
            if done == count:
                break
            victim = VICTIMS[done % len(VICTIMS)]
            if victim == "pool":
                await asyncio.to_thread(pool_round, folder / f"pool-{number}", chance, tally)
            elif victim == "server":
                (server_folder := folder / f"server-{number}").mkdir()
                await server_round(server_folder, number, AT_A_TIME, chance.uniform(0.0, LONGEST_DELAY_S), tally)
            else:
                await part_round(stage, pools[0], victim, number, chance, tally)
    tally.orphans += len(set(processes.find_labeled(processes.OWNER_LABEL, token)) - before - {os.getpid()})
    return tally


def report(tally: Tally, thresholds: Thresholds, wanted: int) -> None:
    """Check the results against the thresholds."""
    print("killed: " + ", ".join(f"{victim} {count} times" for victim, count in tally.rounds.items()))
    done = tally.rounds.total()
    thresholds.check("rounds in which something was killed", done >= wanted, f"{done}", f">= {wanted}")
    figure = f"{tally.orphans}, the slowest gone after {tally.slowest_s:.1f} s"
    thresholds.check(f"orphans {GONE_WITHIN_S:.0f} s after a kill", tally.orphans == 0, figure, "0")
    figure = (
        f"{tally.affected} affected, {tally.late} judged before the kill, {len(tally.wrong)} otherwise than they must"
    )
    thresholds.check("episodes hit are unscored, others not", not tally.wrong, figure, "0 otherwise")
    thresholds.check(
        "leases of killed pools and servers fenced",
        not tally.unfenced,
        f"{tally.leases - tally.unfenced} of {tally.leases}",
        "all",
    )
    for line in tally.wrong[:10]:
        print(f"  {line}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--own", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.own:
        asyncio.run(own(options.own))
        return
    print_head()
    thresholds, count = Thresholds(), {"smoke": 1, "small": len(VICTIMS), "full": 50}[options.size]
    with tempfile.TemporaryDirectory(prefix="deskhand-kills-") as folder:
        tally = asyncio.run(rounds(Path(folder), count, options.seed))
    report(tally, thresholds, count)
    thresholds.finish()


if __name__ == "__main__":
    main()
