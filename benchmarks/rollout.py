"""Episodes as a whole: `python -m benchmarks.rollout [--episodes N] [--full]`.

1. Oracle episodes of the suite `basics` on embedded desktops, through agent, recorder and store, played by a scripted engine:
episodes per minute, seconds by phase, processes left behind, the books, and the longest callback of the event loop.
2. The same with one desktop slowed tenfold: what it costs the others.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from benchmarks.bars import Bars, print_head
from deskhand.actions.dialects import deskhand_json
from deskhand.actions.ops import Op
from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent
from deskhand.desktop.base import Desktop, Frame
from deskhand.desktop.embedded.desktop import EmbeddedDesktop
from deskhand.desktop.embedded.processes import OWNER_LABEL, labelled
from deskhand.desktop.embedded.runtime import runtime
from deskhand.desktop.pool import DesktopPool
from deskhand.engines.scripted import ScriptedEngine
from deskhand.models.tiny.architecture import PREPROCESSOR
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.session import Recorder
from deskhand.rollout.groups import Groups, Ticket
from deskhand.rollout.journal import Journal, load_result
from deskhand.rollout.loop import TrainingSource
from deskhand.rollout.record import EpisodeResult
from deskhand.rollout.runner import Runner
from deskhand.rollout.scheduler import Scheduler
from deskhand.store.run import TRAIN, Run
from deskhand.tasks.suites import basics
from deskhand.tasks.task import Task, seed_for

GROUP = 4
CALLBACK_BAR_MS = 100.0


class CallbackClock:
    """Times every callback of the event loop, by the wall and by the processor time of its thread."""

    def __init__(self) -> None:
        self.longest_ms, self.longest_processor_ms, self.culprit = 0.0, 0.0, ""
        self._run = asyncio.events.Handle._run

    def __enter__(self) -> CallbackClock:
        clock, run = self, self._run

        def timed(handle: asyncio.events.Handle) -> None:
            wall, processor = time.perf_counter(), time.thread_time()
            run(handle)
            wall_ms, processor_ms = (time.perf_counter() - wall) * 1000, (time.thread_time() - processor) * 1000
            clock.longest_processor_ms = max(clock.longest_processor_ms, processor_ms)
            if wall_ms > clock.longest_ms:
                clock.longest_ms, clock.culprit = wall_ms, repr(handle)[:160]

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.events.Handle._run = self._run  # type: ignore[method-assign]


class SlowedDesktop(EmbeddedDesktop):
    """An embedded desktop whose actions take `FACTOR` times as long."""

    FACTOR = 10.0
    alive = 0
    """How many there are now."""
    used = 0
    """How many ever performed an action: episodes played on one."""

    def __init__(self) -> None:
        super().__init__()
        SlowedDesktop.alive += 1
        self._fresh, self._here = True, True

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        SlowedDesktop.used += self._fresh
        self._fresh = False
        before = time.monotonic()
        frame = await super().perform(ops, action_id=action_id)
        await asyncio.sleep((self.FACTOR - 1) * (time.monotonic() - before))
        return frame

    async def close(self) -> None:
        SlowedDesktop.alive -= self._here
        self._here = False
        await super().close()


def one_slowed() -> EmbeddedDesktop:
    """One desktop at a time is a slowed one."""
    return EmbeddedDesktop() if SlowedDesktop.alive else SlowedDesktop()


async def oracle(task: Task, desktop: Desktop) -> AsyncIterator[str]:
    """The task's own solution, in the words of the dialect."""
    async for ops in task.oracle(desktop):
        yield deskhand_json.emit(ops)


def families(tier: str) -> list[str]:
    return [name for name, family in basics.FAMILIES.items() if family.tier == tier]


async def play(
    folder: Path,
    episodes: int,
    desktops: int,
    names: list[str],
    *,
    limit_s: float = 1e9,
    make: Callable[[], Any] = EmbeddedDesktop,
) -> tuple[list[EpisodeResult], Run, float, str]:
    """Run oracle episodes, at most `episodes` and, begun, for at most `limit_s`; (results within the time, run, seconds, books)."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tasks = [basics.make_task(names[number % len(names)], seed_for("train", number // len(names))) for number in range(episodes)]
    tokenizer = build_tokenizer([task.instruction for task in tasks])
    renderer = ChatRenderer(tokenizer)
    engine = ScriptedEngine(lambda text: tokenizer.encode(text, add_special_tokens=False), renderer.stop_ids[0])
    run = Run.create(folder, {"benchmark": "rollout"})
    processor = {key: value for key, value in PREPROCESSOR.items() if key != "image_processor_type"}
    recorder = Recorder(renderer, engine, ImageCache(Qwen2VLImageProcessorPil(**processor), fetch=run.frames.png))
    journal = Journal(run)
    groups = -(-episodes // GROUP)
    source = TrainingSource(Groups(lambda number: tasks[number % len(tasks)], size=GROUP, limit=groups), journal)
    ended: list[EpisodeResult] = []

    async with DesktopPool(desktops, make=make) as pool:
        runner = Runner(
            pool, recorder, DesktopAgent(AgentConfig(max_tokens=256)), run.frames, script=oracle, playing=engine.playing
        )

        async def one(ticket: Ticket) -> EpisodeResult:
            result = await runner.run(ticket)
            in_time = time.monotonic() - began < limit_s
            if in_time:
                ended.append(result)
            source.exhausted = journal.ledger.started >= episodes or not in_time
            return result

        began = time.monotonic()
        await Scheduler(source, one, desktops).run()
        seconds = min(time.monotonic() - began, limit_s)
        await runner.close()
    recorder.close()
    return ended, run, seconds, await journal.check()


def report(ended: list[EpisodeResult], seconds: float) -> None:
    print(f"{len(ended)} episodes in {seconds:.1f} s: {len(ended) * 60 / seconds:.0f} episodes/min")
    for phase in ("reset", "setup", "solve", "model", "judge", "total"):
        values = sorted(result.seconds.get(phase, 0.0) for result in ended)
        print(f"  {phase:<6} median {statistics.median(values):.2f} s, longest {values[-1]:.2f} s")
    for family, results in sorted(collections.Counter(result.family for result in ended).items()):
        solved = sum(result.success for result in ended if result.family == family)
        print(f"  {family}: {solved} of {results} solved")
    for result in ended:
        if not result.success:
            print(f"  not solved: {result.task_id}: {result.outcome} {[step.text for step in result.transcript.steps]}")


def zombies() -> list[int]:
    """Children of this process that have ended and were not waited for."""
    children = [child for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()]
    states = {int(child): Path(f"/proc/{child}/stat") for child in children}
    return [pid for pid, path in states.items() if path.exists() and path.read_text().rpartition(")")[2].split()[0] == "Z"]


async def slowed(scratch: Path, desktops: int, names: list[str], window_s: float, bars: Bars) -> None:
    """Episodes per minute and desktop, with all desktops even and with one slowed, side by side."""
    ended, run, seconds, _ = await play(scratch / "even-window", 10_000, desktops, names, limit_s=window_s)
    run.close()
    even = len(ended) * 60 / seconds / desktops
    ended, run, seconds, books = await play(scratch / "slowed", 10_000, desktops, names, limit_s=window_s, make=one_slowed)
    run.close()
    others = (len(ended) - SlowedDesktop.used) * 60 / seconds / (desktops - 1)
    print(f"one of {desktops} desktops slowed {SlowedDesktop.FACTOR:.0f} times: it played {SlowedDesktop.used}; books: {books}")
    figure = f"{others:.1f} episodes/min for each of the others, {even:.1f} for each when all are even: ratio {others / even:.2f}"
    bars.check("one slow desktop", others >= 0.9 * even, figure, ">= 0.90")


async def main(episodes: int, desktops: int, tier: str, window_s: float) -> None:
    print_head()
    bars, names = Bars(), families(tier)
    with tempfile.TemporaryDirectory() as scratch:
        with CallbackClock() as clock:
            ended, run, seconds, books = await play(Path(scratch) / "even", episodes, desktops, names)
        report(ended, seconds)
        print(f"books: {books}")
        kept = [load_result(run, row.id) for row in run.episodes(TRAIN)]
        run.close()
        await asyncio.sleep(1.0)
        left = labelled(OWNER_LABEL, runtime().token) + zombies()
        bars.check("processes left behind", not left, str(len(left)), "0")
        same = {result.episode_id: result for result in kept} == {result.episode_id: result for result in ended}
        bars.check("episodes read back equal from the store", same, str(len(kept)), f"{len(ended)}")
        print(f"longest callback: {clock.longest_ms:.1f} ms by the wall ({clock.culprit})")
        figure = f"{clock.longest_processor_ms:.1f} ms of processor time"
        bars.check("longest callback", clock.longest_processor_ms < CALLBACK_BAR_MS, figure, f"< {CALLBACK_BAR_MS:.0f} ms")
        solved = sum(result.success for result in ended) / len(ended)
        bars.check("solved by the oracle", solved >= 0.98, f"{solved:.1%}", ">= 98 %")
        if window_s:
            await slowed(Path(scratch), desktops, names, window_s, bars)
    bars.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=24)
    parser.add_argument("--desktops", type=int, default=4)
    parser.add_argument("--tier", default="easy")
    parser.add_argument("--slowed", type=float, default=0.0, metavar="SECONDS", help="length of each half of the second part")
    parser.add_argument("--full", action="store_true", help="100 episodes, two minutes for each half of the second part")
    asked = parser.parse_args()
    count, window = (100, 120.0) if asked.full else (asked.episodes, asked.slowed)
    asyncio.run(main(count, asked.desktops, asked.tier, window))
