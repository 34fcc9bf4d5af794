"""Scripted episodes on embedded desktops leave nothing behind and hold up nobody; and what measures that can fail."""

import asyncio
import subprocess
import time

from benchmarks import episodes
from benchmarks.event_loop_lag import Watch, watched
from benchmarks.recording import EASY
from benchmarks.thresholds import Thresholds


async def test_scripted_episodes_leave_no_process_and_counts_add_up(tmp_path):
    found = await episodes.many(tmp_path / "run", 8, EASY, 2)
    thresholds = Thresholds()
    episodes.judge(found, thresholds)
    assert not {"leaked processes", "episode counts"} & set(thresholds.missed)
    assert found.successes == 8
    assert found.watch.longest_cpu_s <= 0.1, "by processor time: what else runs on the machine does not count here"


async def test_a_process_that_stays_is_found_and_named(tmp_path, monkeypatch):
    stray: list[subprocess.Popen] = []
    real = episodes.oracle

    def leaking(agent):
        stray.append(subprocess.Popen(["sleep", "60"]))
        return real(agent)

    monkeypatch.setattr(episodes, "oracle", leaking)
    try:
        found = await episodes.many(tmp_path / "run", 1, EASY, 1)
        assert found.leaked == [stray[0].pid]
    finally:
        stray[0].kill()
        stray[0].wait()


def watch_of(work) -> Watch:
    async def main() -> Watch:
        with watched() as watch:
            await work()
            await asyncio.sleep(0)
        return watch

    return asyncio.run(main())


def test_a_callback_that_blocks_is_measured_and_named():
    async def blocking():
        await asyncio.sleep(0)
        time.sleep(0.12)  # noqa: ASYNC251
        await asyncio.sleep(0)

    watch = watch_of(lambda: asyncio.create_task(blocking()))
    assert watch.longest_held_s >= 0.1
    assert "blocking" in watch.longest_name


def test_waiting_does_not_count_as_held():
    watches = [watch_of(lambda: asyncio.sleep(0.12)) for _ in range(10)]
    assert all(watch.callbacks for watch in watches)
    assert min(watch.longest_held_s for watch in watches) < 0.1, "other work may hold some of them as long"


def test_the_rate_of_the_others_excludes_the_first_slot():
    places = episodes.Places(None, True)  # type: ignore[arg-type]
    places.began = 100.0
    places.ended = {"first": [101.0] * 50, "second": [102.0, 104.0], "third": [106.0]}  # type: ignore[dict-item]
    assert places.rate_of_others() == 3 / 10


async def test_a_slow_desktop_takes_ten_times_as_long():
    class Brief:
        async def observe(self):
            await asyncio.sleep(0.01)
            return "frame"

    began = time.monotonic()
    assert await episodes.SlowDesktop(Brief()).observe() == "frame"
    assert time.monotonic() - began >= 0.1
