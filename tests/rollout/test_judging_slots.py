"""An episode that is only being judged holds no slot, so that another one starts; never more than were asked for."""

import asyncio
import uuid
from dataclasses import replace

import fake_desktop
import pytest
from patience import limit

from deskhand.actions.ops import Done
from deskhand.config.schema import DesktopConfig
from deskhand.recipes.assemble import judging_desktops
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.runner import ApiRunner
from deskhand.rollout.scheduler import Scheduler
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import CheckResult, Task


class Agent:
    """Counts the agents at work, and presses nothing."""

    def __init__(self) -> None:
        self.at_work = self.most_at_work = self.started = 0
        self.next_started = asyncio.Event()

    async def run(self, episode):
        self.at_work, self.started = self.at_work + 1, self.started + 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        if self.started > 1:
            self.next_started.set()
        await episode.observe()
        await episode.act((Done(),))
        self.at_work -= 1


class Counted:
    """`count` episodes; the first one's check waits until the agent of another is at work."""

    def __init__(self, agent: Agent, count: int, *, waits: bool = False) -> None:
        self.agent, self.left, self.waits = agent, count, waits
        self.judged = self.most_judged = 0
        self.results = []

    @property
    def exhausted(self) -> bool:
        return self.left == 0

    def task(self) -> Task:
        async def check(desktop):
            self.judged += 1
            self.most_judged = max(self.most_judged, self.judged)
            if self.waits:
                await self.agent.next_started.wait()
            await asyncio.sleep(0.01)
            self.judged -= 1
            return CheckResult(1.0)

        async def start_check(desktop):
            return CheckResult(0.0)

        changes = {"start_check": start_check, "milestones": (), "settle_grace_s": 0.0}
        return replace(fake_desktop.square_task(1), check=check, **changes)

    async def next(self):
        if not self.left:
            return None
        self.left -= 1
        return EpisodeRequest(uuid.uuid4().hex, self.task())

    async def on_result(self, result):
        self.results.append(result)


async def played(source: Counted, concurrency: int, num_judging: int) -> None:
    pool = fake_desktop.PaintedPool(24)
    runner = ApiRunner(pool, None, source.agent)  # type: ignore[arg-type]
    async with asyncio.timeout(limit(20)):
        await Scheduler(source, runner.run, concurrency, num_judging=num_judging).run()
    assert [result.outcome for result in source.results if not isinstance(result.outcome, Scored)] == []
    assert not pool.leased


async def test_an_agent_starts_while_the_judge_of_the_only_slot_waits():
    source = Counted(Agent(), 2, waits=True)
    await played(source, 1, 1)
    assert len(source.results) == 2


@pytest.mark.parametrize(("concurrency", "num_judging"), [(1, 0), (1, 1), (3, 2)])
async def test_agents_and_judges_stay_within_their_numbers(concurrency, num_judging):
    source = Counted(Agent(), 24)
    await played(source, concurrency, num_judging)
    assert len(source.results) == 24
    assert source.agent.most_at_work <= concurrency
    assert source.most_judged <= concurrency + num_judging


async def test_a_slot_is_free_once_however_often_its_episode_says_so():
    running, most, source = 0, 0, Counted(Agent(), 12)

    async def run_one(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        for _ in range(3):
            request.on_agent_ended()
        await asyncio.sleep(0.005)
        request.on_agent_ended()
        return await ApiRunner(fake_desktop.PaintedPool(1), None, source.agent).run(request)  # type: ignore[arg-type]

    scheduler = Scheduler(source, run_one, 2, num_judging=4)
    async with asyncio.timeout(limit(20)):
        await scheduler.run()
    assert most == 2
    assert len(source.results) == 12


def test_local_desktops_for_judging_fit_on_the_machine(monkeypatch):
    monkeypatch.setattr("deskhand.recipes.assemble.max_desktops", lambda request: (int(1600 / request), "memory"))
    fits = [judging_desktops(DesktopConfig(memory_request_mib=mib, prewarm=1), 8) for mib in (100, 150, 160, 400)]
    assert fits == [4, 1, 1, 0]


@pytest.mark.parametrize("backend", ["server", "sandbox", "osworld"])
def test_desktops_of_others_are_only_used_for_judging_when_asked_for(backend):
    config = DesktopConfig(backend=backend, urls=("http://127.0.0.1:1",))
    assert judging_desktops(config, 8) == 0
    assert judging_desktops(config.model_copy(update={"num_judging": 3}), 8) == 3
