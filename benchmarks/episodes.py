"""Many episodes of a scripted policy on local desktops: `python -m benchmarks.episodes [--full]`.

The policy is each task's oracle, played through the agent, the OpenAI endpoint and the recorder, with training's
groups, counts and scheduler. Measured: processes left behind, whether episode counts add up, the longest event-loop
callback (`event_loop_lag`), and how much one desktop that is ten times slower delays episodes on the others.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from benchmarks.event_loop_lag import Watch, watched
from benchmarks.recording import EASY
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent
from deskhand.config.loop import HealthConfig
from deskhand.desktop.base import DesktopSpec, Lease, StageableDesktop
from deskhand.desktop.local import processes
from deskhand.desktop.local.runtime_dir import runtime
from deskhand.desktop.pool import DesktopPool
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.engines.scripted import ScriptedEngine
from deskhand.errors import RecordError
from deskhand.models.tiny.architecture import PREPROCESSOR
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recipes.group_source import EpisodeAlerts, GroupSource
from deskhand.recipes.tiny.build import BuildPlan, corpus
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest, GroupBuffer
from deskhand.rollout.run_writer import RunWriter
from deskhand.rollout.runner import RecordedRunner
from deskhand.rollout.scheduler import Scheduler, frozen_gc
from deskhand.rollout.scripted_policies import oracle
from deskhand.rollout.success_statistics import SuccessStatistics
from deskhand.store.run import Run
from deskhand.tasks.suites import basics
from deskhand.tasks.task import Task, seed_for

GROUP, GROUPS_AT_A_TIME = 4, 8
TENFOLD = 10
_slowed: ContextVar[bool] = ContextVar("slowed", default=False)


class SlowDesktop:
    """Desktop that takes `TENFOLD` times as long for every call."""

    def __init__(self, desktop: Any) -> None:
        self._desktop = desktop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._desktop, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def slowly(*arguments: Any, **options: Any) -> Any:
            began = time.monotonic()
            try:
                return await found(*arguments, **options)
            finally:
                await asyncio.sleep((TENFOLD - 1) * (time.monotonic() - began))

        return slowly


class SlowablePool(DesktopPool):
    """Pool that gives a slow desktop to the slot marked as slow."""

    async def lease(self, spec: DesktopSpec | None = None) -> Lease:
        lease = await super().lease(spec)
        return Lease(cast(StageableDesktop, SlowDesktop(lease.desktop)), lease.epoch) if _slowed.get() else lease


class Places:
    """Runs episodes and records when each scheduler slot finished them; the first slot may be slow."""

    def __init__(self, run: Callable[[EpisodeRequest], Awaitable[EpisodeResult]], first_is_slow: bool) -> None:
        self._run, self._first_is_slow = run, first_is_slow
        self.began = time.monotonic()
        self.ended: dict[asyncio.Task[Any] | None, list[float]] = {}

    async def run(self, ticket: EpisodeRequest) -> EpisodeResult:
        place = asyncio.current_task()
        ends = self.ended.setdefault(place, [])
        _slowed.set(self._first_is_slow and place is next(iter(self.ended)))
        result = await self._run(ticket)
        ends.append(time.monotonic())
        return result

    def rate_of_others(self) -> float:
        """Return episodes per second and slot, excluding the first slot."""
        others = [ends for ends in list(self.ended.values())[1:] if ends]
        return sum(map(len, others)) / sum(ends[-1] - self.began for ends in others)


class CountedSource(GroupSource):
    """Training's episode source, limited to `count` episodes."""

    def __init__(self, groups: GroupBuffer, writer: RunWriter, count: int) -> None:
        statistics = SuccessStatistics(GROUP, decay=1.0, step_of=lambda version: 0)
        super().__init__(groups, writer, statistics, EpisodeAlerts(HealthConfig(), lambda: 0, None))
        self._left = count
        self.results: list[EpisodeResult] = []

    async def next(self) -> EpisodeRequest | None:
        if self._left <= 0:
            self.exhausted = True
            return None
        self._left -= 1
        ticket = await super().next()
        self._left += ticket is None
        return ticket

    async def on_result(self, result: EpisodeResult) -> None:
        self.results.append(result)
        await super().on_result(result)


@dataclass
class Stage:
    """Desktops, recorder and run directory."""

    run: Run
    runner: RecordedRunner
    families: Sequence[str]
    desktops: int
    offset: int = 0
    writer: RunWriter = field(init=False)

    def __post_init__(self) -> None:
        self.writer = RunWriter(self.run)

    def task(self, number: int) -> Task:
        return basics.make_task(
            self.families[number % len(self.families)], seed_for("train", number // len(self.families))
        )

    async def play(self, count: int, first_is_slow: bool = False) -> tuple[list[EpisodeResult], Places]:
        """Run `count` episodes in groups."""
        places = Places(self.runner.run, first_is_slow)
        groups = GroupBuffer(self.task, size=GROUP, limit=GROUPS_AT_A_TIME, next_number=self.offset)
        source = CountedSource(groups, self.writer, count)
        await Scheduler(source, places.run, self.desktops).run()
        self.offset = groups.next_number
        return source.results, places


@asynccontextmanager
async def staged(
    folder: Path,
    families: Sequence[str],
    desktops: int,
    make_pool: Callable[[int], DesktopPool | ServerPool] | None = None,
) -> AsyncIterator[Stage]:
    """Yield the oracle behind a recorder, with `desktops` concurrent local desktops."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = build_tokenizer(corpus(BuildPlan().families))
    settings = {key: value for key, value in PREPROCESSOR.items() if key != "image_processor_type"}
    renderer = ChatRenderer(tokenizer)
    engine = ScriptedEngine(lambda text: tokenizer.encode(text, add_special_tokens=False), renderer.stop_ids[0])
    with Run.create(folder, {}) as run:
        recorder = Recorder(renderer, engine, ImageCache(Qwen2VLImageProcessorPil(**settings), fetch=run.frames.png))
        async with make_pool(desktops) if make_pool else SlowablePool(desktops, prewarm=1) as pool:
            agent = DesktopAgent(AgentConfig(max_new_tokens=512))
            runner = RecordedRunner(pool, recorder, agent, run.frames, script=oracle(agent), playing=engine.playing)
            try:
                yield Stage(run, runner, families, desktops)
            finally:
                await runner.close()
                recorder.close()


@dataclass(frozen=True)
class Found:
    """Measurements."""

    episodes: int
    successes: int
    unscored: int
    minutes: float
    leaked: list[int]
    """Process ids."""
    books: str
    books_close: bool
    watch: Watch


async def many(folder: Path, count: int, families: Sequence[str], desktops: int) -> Found:
    """Play `count` episodes, close everything and look for leaks."""
    owner = runtime()
    before = set(processes.descendants(os.getpid()))
    began = time.monotonic()
    async with staged(folder, families, desktops) as stage:
        with frozen_gc(), watched() as watch:
            results, _ = await stage.play(count)
        try:
            books, close = f"{await stage.writer.check()}", stage.writer.counts.in_flight == 0
        except RecordError as error:
            books, close = str(error), False
    left = {*processes.descendants(os.getpid()), *processes.find_labeled(processes.OWNER_LABEL, owner.token)} - before
    return Found(
        episodes=len(results),
        successes=sum(result.success for result in results),
        unscored=sum(result.reward is None for result in results),
        minutes=(time.monotonic() - began) / 60,
        leaked=sorted(left),
        books=books,
        books_close=close and stage.writer.counts.started == len(results) == count,
        watch=watch,
    )


async def tenfold(folder: Path, count: int, desktops: int) -> tuple[float, float]:
    """Return episodes per second and slot on the normal slots, without and with a slow desktop."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    async with staged(folder, EASY, desktops) as stage:
        await stage.play(desktops)
        for slow in (False, True, True, False):
            _, places = await stage.play(count, first_is_slow=slow)
            rates[slow].append(places.rate_of_others())
    return sum(rates[False]) / 2, sum(rates[True]) / 2


def judge(found: Found, thresholds: Thresholds) -> None:
    """Check the results of `many` against the thresholds."""
    rate = found.episodes / found.minutes
    print(f"{found.episodes} episodes, {found.successes} solved, {found.unscored} errored, {rate:.0f} a minute")
    print(f"episode counts: {found.books}")
    thresholds.check("leaked processes", not found.leaked, f"{len(found.leaked)} {found.leaked or ''}".strip(), "0")
    thresholds.check(
        "episode counts",
        found.books_close,
        "add up" if found.books_close else "do not add up",
        "add up, nothing in flight",
    )
    watch = found.watch
    held_ms, wall_ms, cpu_ms = (
        1e3 * value for value in (watch.longest_held_s, watch.longest_wall_s, watch.longest_cpu_s)
    )
    figure = (
        f"{held_ms:.1f} ms held ({watch.longest_name}), {wall_ms:.1f} ms by the clock, "
        f"{cpu_ms:.1f} ms of processor time"
    )
    thresholds.check(f"longest of {watch.callbacks} callbacks", watch.longest_held_s <= 0.1, figure, "<= 100 ms held")


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    print_head()
    sizes: dict[str, tuple[int, Sequence[str], int, int]] = {
        "smoke": (4, EASY, 4, 2),
        "small": (16, EASY, 12, 4),
        "full": (100, tuple(basics.FAMILIES), 60, 4),
    }
    count, families, slow_count, desktops = sizes[options.size]
    thresholds = Thresholds()
    with tempfile.TemporaryDirectory(prefix="deskhand-episodes-") as folder:
        judge(asyncio.run(many(Path(folder) / "many", count, families, desktops)), thresholds)
        without, beside = asyncio.run(tenfold(Path(folder) / "tenfold", slow_count, desktops))
    rates = f"{60 * beside:.1f} episodes a minute and place beside a slow desktop, {60 * without:.1f} without"
    figure = f"{rates}: {beside / without - 1:+.0%}"
    thresholds.check("one desktop slowed tenfold", beside >= 0.9 * without, figure, "costs the others < 10 %")
    thresholds.finish()


if __name__ == "__main__":
    main()
