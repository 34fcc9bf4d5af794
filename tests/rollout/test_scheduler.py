"""Many episodes at once: nobody waits for a slow desktop, everything is accounted for."""

import asyncio
import gc
import uuid

import episode_results
import fake_desktop
import pytest
from patience import limit

from deskhand.errors import InfrastructureError
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.scheduler import Scheduler, frozen_gc
from deskhand.tasks.outcome import Errored


class Endless:
    """Tickets without end, until it is told."""

    def __init__(self) -> None:
        self.exhausted = False
        self.started, self.results = 0, []

    async def next(self):
        if self.exhausted:
            return None
        self.started += 1
        return EpisodeRequest(uuid.uuid4().hex, fake_desktop.square_task(self.started))

    async def on_result(self, result):
        self.results.append(result)


async def episodes_per_place(delays: list[float], seconds: float) -> list[int]:
    """How many episodes each desktop ran; an episode is four actions of `delays[place]`."""
    pool, source = fake_desktop.PaintedPool(len(delays), delays=delays), Endless()

    async def run_one(request):
        lease = await pool.lease()
        await lease.desktop.reset(fake_desktop.DesktopSpec("plain", 64, 48))
        for step in range(4):
            await lease.desktop.perform([], action_id=f"{request.episode_id}-{step}")
        await pool.release(lease)
        return episode_results.result(episode_id=request.episode_id)

    scheduler = Scheduler(source, run_one, len(delays))
    running = asyncio.create_task(scheduler.run())
    await asyncio.sleep(seconds)
    counted = [pool.ended[place] for place in range(len(delays))]
    source.exhausted = True
    await running
    assert source.started == len(source.results)
    return counted


async def test_one_desktop_slowed_tenfold_costs_the_others_less_than_a_tenth():
    delays = ([0.02] * 4, [0.2, 0.02, 0.02, 0.02])
    even, slowed = await asyncio.gather(
        *(episodes_per_place(each, 2.0) for each in delays)
    )  # what else runs slows both
    assert slowed[0] <= even[0] / 5
    assert sum(slowed[1:]) >= 0.9 * sum(even[1:]), (even, slowed)


async def test_canceling_counts_every_episode_as_cancelled():
    source, cleaned = Endless(), []

    async def run_one(request):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(request.episode_id)

    running = asyncio.create_task(Scheduler(source, run_one, 3).run())
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(cleaned) == source.started == len(source.results) == 3
    assert {result.outcome.cause for result in source.results} == {"cancelled"}


async def test_consecutive_outages_end_the_run_and_a_scored_episode_resets_them():
    source, ends = Endless(), iter([None] * 4 + [1.0] + [None] * 5)

    async def run_one(request):
        return episode_results.result(next(ends), episode_id=request.episode_id)

    with pytest.raises(InfrastructureError, match="5 consecutive episodes failed; last error: it broke"):
        await Scheduler(source, run_one, 1, max_failures=5).run()
    assert len(source.results) == 10


async def test_an_unexpected_error_ends_the_run():
    source = Endless()

    async def run_one(request):
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        await Scheduler(source, run_one, 2).run()
    assert all(isinstance(result.outcome, Errored) for result in source.results)
    assert source.started == len(source.results)


async def test_waiting_slots_are_woken():
    class Gate(Endless):
        open = False

        async def next(self):
            return await super().next() if self.open else None

    source = Gate()

    async def run_one(request):
        source.exhausted = True
        return episode_results.result(episode_id=request.episode_id)

    scheduler = Scheduler(source, run_one, 2)
    running = asyncio.create_task(scheduler.run())
    await asyncio.sleep(0.02)
    assert source.started == 0
    source.open = True
    scheduler.wake()
    async with asyncio.timeout(limit(60)):
        await running
    assert len(source.results) == source.started >= 1


def test_frozen_objects_are_not_collected():
    kept = [{"number": number} for number in range(1000)]
    with frozen_gc():
        assert gc.get_freeze_count() >= len(kept)
        assert not any(item is kept for item in gc.get_objects())
    assert gc.get_freeze_count() == 0
    assert any(item is kept for item in gc.get_objects())
