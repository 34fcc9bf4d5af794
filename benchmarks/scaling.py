"""Concurrent episodes of a scripted engine: `python -m benchmarks.scaling [--full] [--desktops KIND]`.

Every case is a process of its own in which that many episodes run at once, through agent, recorder and frame store, on
desktops that answer at once (fake: a new 320x256 screen for each action) or on local ones (real: a terminal in which
each action types a word). Printed for each case:

- steps per second, and the longest time for which one callback held the event loop;
- CPU milliseconds of a step, in this process and in those of the desktops;
- memory of this process and, for real desktops, of their processes per desktop;
- the busiest resource: the interpreter (CPU time of this process per second, at most about one core), or the cores.

Then desktops per core, at a step per second each, and per GiB, and the exponent of the CPU time of a step over the
number of episodes (0: it does not grow). More desktops are started than a pool starts by default, but cases that do not
fit into the memory of this machine, and those that fail, are named. Other load lowers the rates, but hardly the CPU
times.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.event_loop_lag import watched
from benchmarks.fault_rows.parts import SUPPORT
from benchmarks.synthetic_screens import Endpoint
from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.actions.ops import Type
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop import host_capacity
from deskhand.desktop.base import DesktopSpec, Frame
from deskhand.desktop.pool import DesktopPool
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.runner import RecordedRunner
from deskhand.store.frames import Frames
from deskhand.tasks.suites import basics
from deskhand.tasks.task import Task

sys.path.insert(0, str(SUPPORT))

from fake_desktop import PaintedDesktop, PaintedLease, PaintedPool, square_task  # pyright: ignore

WIDTH, HEIGHT = 320, 256
DESKTOP_MIB = 40
"""Memory for a desktop with a terminal."""
MAX_EXPONENT = 0.2
"""Of the CPU time of a step over the number of episodes."""


@dataclass(frozen=True)
class Case:
    """`episodes` at once, each of `turns` steps."""

    desktops: str
    episodes: int
    turns: int


@dataclass(frozen=True)
class Found:
    """Measurements of a case."""

    steps_per_s: float
    longest_held_ms: float
    own_ms: float
    """CPU time of this process per step."""
    desktops_ms: float
    own_mib: float
    desktop_mib: float

    @property
    def busiest(self) -> str:
        """What was used most while the episodes ran."""
        interpreter = self.steps_per_s * self.own_ms / 1e3
        cores = self.steps_per_s * (self.own_ms + self.desktops_ms) / 1e3 / len(os.sched_getaffinity(0))
        return f"interpreter {interpreter:.0%}" if interpreter >= cores else f"cores {cores:.0%}"


SIZES = {
    "smoke": [Case("fake", 2, 2), Case("fake", 4, 2)],
    "small": [Case("fake", 16, 15), Case("fake", 64, 15), Case("fake", 16, 50), Case("real", 4, 15)],
    "full": [
        *(Case("fake", episodes, 15) for episodes in (16, 64, 128, 256)),
        *(Case("fake", 16, turns) for turns in (50, 100)),
        *(Case("real", episodes, 15) for episodes in (4, 8, 16, 32, 64, 128, 256)),
        *(Case("real", 16, turns) for turns in (50, 100)),
    ],
}


class ChangingDesktop(PaintedDesktop):
    """Shows a new screen after every action."""

    async def observe(self) -> Frame:
        frame = await super().observe()
        pixels = frame.bgrx.copy()
        pixels[:: HEIGHT // 16, ::4, :3] = np.random.default_rng([id(self) % 2**32, frame.sequence]).integers(256)
        pixels[: HEIGHT // 8, : WIDTH // 8, :3] = frame.sequence % 256
        pixels.flags.writeable = False
        return replace(frame, bgrx=pixels)


class ChangingPool(PaintedPool):
    """Lends these desktops."""

    async def lease(self, spec: DesktopSpec | None = None) -> PaintedLease:
        lease = await super().lease(spec)
        lease.desktop = ChangingDesktop()
        return lease


async def measure(case: Case, folder: Path) -> Found:
    """Run a case in this process."""
    bench, frames = Endpoint(), Frames(folder)
    images = ImageCache(bench.processor, fetch=frames.pixels)
    recorder = Recorder(bench.renderer, bench.engine, images)
    agent = DesktopAgent()
    task = square_task(1) if case.desktops == "fake" else basics.make_task("terminal_run", 1)
    if case.desktops == "fake":
        task = replace(task, width=WIDTH, height=HEIGHT)
    task = replace(task, max_steps=case.turns)
    view = agent.view_of(task.width, task.height)

    async def script(_: Task, __: Any) -> AsyncIterator[str]:
        for number in range(case.turns):
            yield agent.action_format.emit([Type(f"word{number} ")], view)

    async with AsyncExitStack() as stack:
        pool: Any = ChangingPool(case.episodes)
        if case.desktops == "real":
            pool = await stack.enter_async_context(DesktopPool(case.episodes, prewarm=0, memory_request_mib=None))
        runner = RecordedRunner(pool, recorder, agent, frames, script=script, playing=bench.engine.playing)
        memory: list[float] = []
        watching = asyncio.create_task(_watch_children(memory, case.episodes)) if case.desktops == "real" else None
        began, before = time.perf_counter(), time.process_time()
        with watched() as watch:
            results = await asyncio.gather(
                *(runner.run(EpisodeRequest(f"e{number}", task)) for number in range(case.episodes))
            )
        wall_s, own_s = time.perf_counter() - began, time.process_time() - before
        if watching is not None:
            watching.cancel()
        await runner.close()
        recorder.close()
    steps = sum(len(result.transcript.steps) for result in results)
    if steps != case.episodes * case.turns:
        raise RuntimeError(f"{steps} steps in place of {case.episodes * case.turns}: {results[0].outcome}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Found(
        steps_per_s=steps / wall_s,
        longest_held_ms=1e3 * watch.longest_held_s,
        own_ms=1e3 * own_s / steps,
        desktops_ms=1e3 * (used.ru_utime + used.ru_stime) / steps,
        own_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        desktop_mib=max(memory, default=0.0),
    )


async def _watch_children(memory: list[float], desktops: int) -> None:
    """Append the private memory of all child processes per desktop, in MiB, every two seconds."""

    def total() -> float:
        found = 0
        for child in psutil.Process().children(recursive=True):
            try:
                found += child.memory_full_info().uss
            except psutil.Error:
                continue
        return found / 2**20 / desktops

    while True:
        await asyncio.sleep(2)
        memory.append(await asyncio.to_thread(total))


def run(case: Case) -> Found | str:
    """Measure a case in a process of its own; return the last line of its error if it fails."""
    words = [sys.executable, "-m", "benchmarks.scaling", "--case", json.dumps(asdict(case))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def show(found: dict[Case, Found]) -> None:
    """Print the table."""
    columns = (
        "desktops | episodes | turns | steps/s | CPU ms: own | desktops | loop held ms | MiB: own | desktop | busiest"
    )
    print(f"| {columns} |\n|{' --- |' * len(columns.split(' | '))}")
    for case, one in found.items():
        words = [case.desktops, str(case.episodes), str(case.turns), f"{one.steps_per_s:.1f}", f"{one.own_ms:.1f}"]
        words += [f"{one.desktops_ms:.1f}", f"{one.longest_held_ms:.0f}", f"{one.own_mib:.0f}"]
        print(f"| {' | '.join([*words, f'{one.desktop_mib:.0f}', one.busiest])} |")


def judge(found: dict[Case, Found], thresholds: Thresholds) -> None:
    """Print desktops per core and GiB, and check the growth."""
    for kind in dict.fromkeys(case.desktops for case in found):
        own = {case: one for case, one in found.items() if case.desktops == kind}
        last = list(own.values())[-1]
        per_core = 1e3 / (last.own_ms + last.desktops_ms)
        print(f"{kind}: {per_core:.1f} desktops per core at a step per second each", end="")
        print(f", {1024 / last.desktop_mib:.1f} per GiB" if last.desktop_mib else "")
        turns = next(iter(own)).turns
        rows = [(case.episodes, one.own_ms) for case, one in own.items() if case.turns == turns]
        if len(rows) > 1:
            episodes, costs_ms = np.log(np.array(rows)).T
            exponent = float(np.polyfit(episodes, costs_ms, 1)[0])
            name = f"growth of a step's CPU time, {kind} desktops"
            thresholds.check(name, exponent <= MAX_EXPONENT, f"episodes^{exponent:.2f}", f"<= {MAX_EXPONENT:g}")


def main() -> None:
    parser = parser_of(__doc__, "16 to 256 episodes, 15 to 100 turns")
    parser.add_argument("--desktops", choices=("fake", "real"), help="measure only these")
    parser.add_argument("--case", help="JSON of one case, which is measured in this process")
    options, thresholds, found = parser.parse_args(), Thresholds(), dict[Case, Found]()
    if options.case:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asdict(asyncio.run(measure(Case(**json.loads(options.case)), Path(folder))))))
        return
    print_head()
    memory_mib = host_capacity.available_memory_mib()
    for case in SIZES[options.size]:
        if options.desktops not in (None, case.desktops):
            continue
        if case.desktops == "real" and case.episodes * DESKTOP_MIB > memory_mib:
            print(f"left out: {case.episodes} real desktops; {memory_mib:.0f} MiB of memory are available")
            continue
        measured = run(case)
        if isinstance(measured, str):
            name = f"{case.episodes} episodes of {case.turns} turns, {case.desktops} desktops"
            thresholds.check(name, False, measured, "end without an error")
        else:
            found[case] = measured
    show(found)
    judge(found, thresholds)
    thresholds.finish()


if __name__ == "__main__":
    main()
