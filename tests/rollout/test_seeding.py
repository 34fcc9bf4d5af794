"""What a policy draws follows from its run, task and try alone: not from what else is played, nor from how often it
was killed."""

from __future__ import annotations

import asyncio

import fake_desktop
import pytest
import training_fixture

from deskhand.agents.seeding import call_seed
from deskhand.rollout.eval_loop import evaluate
from deskhand.rollout.groups import GroupBuffer
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, Run
from deskhand.tasks.task import seed_for

TASKS = [fake_desktop.square_task(seed_for("test", index)) for index in range(8)]


def drawn(run: Run, purpose: str) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    """The sampled ids of each call of each scored episode, by task and member."""
    rows = [row for row in run.episodes(purpose) if row.value is not None]
    return {
        (row.task_id, row.member): [call.completion.token_ids for call in load_result(run, row.id).graph.calls]
        for row in rows
    }


class Interrupted:
    """A runner whose process ends after so many episodes."""

    num_judging = 0

    def __init__(self, runner, episodes: int) -> None:
        self.runner, self.left = runner, episodes

    async def run(self, ticket):
        self.left -= 1
        if self.left < 0:
            raise KeyError
        return await self.runner.run(ticket)


async def test_a_resumed_evaluation_samples_the_same_replies(tmp_path):
    async with training_fixture.assembled(tmp_path / "run", training_fixture.small()) as parts:
        await evaluate(parts.run, "straight", TASKS, parts.runner, 3, samples_per_task=2, seed=4)
        whole = drawn(parts.run, "straight")
        # the same name in another run, one at a time, and as two processes
        with Run.create(tmp_path / "other", {}) as other:
            parts.runner.frames = other.frames
            with pytest.raises(KeyError):
                await evaluate(other, "straight", TASKS, Interrupted(parts.runner, 5), 1, samples_per_task=2, seed=4)
            assert 0 < len(drawn(other, "straight")) < 16
            await evaluate(other, "straight", TASKS, parts.runner, 1, samples_per_task=2, seed=4)
            assert drawn(other, "straight") == whole
            await evaluate(other, "again", TASKS, parts.runner, 2, samples_per_task=2, seed=4)
            assert drawn(other, "again") != whole, "another evaluation draws anew"
    assert len(whole) == 16
    calls = [call for replies in whole.values() for call in replies]
    assert len(set(calls)) > len(calls) / 2, "the tries of a task and the calls of an episode draw anew"


async def test_a_resumed_run_samples_the_same_replies(tmp_path):
    async def train(folder, interrupt: bool):
        stopping = asyncio.Event()
        async with training_fixture.assembled(
            folder, training_fixture.small(total_steps=1, groups_per_step=3, group_size=8, max_concurrent_episodes=4)
        ) as parts:
            work = asyncio.create_task(parts.loop.run())
            while interrupt and not stopping.is_set():
                await asyncio.sleep(0.02)
                if sum(row.value is not None for row in parts.run.episodes(TRAIN)) >= 3:
                    stopping.set()
                    work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            first = {row.id for row in parts.run.episodes(TRAIN) if row.version_max == 0}
            names = {row.id: (row.task_id, row.member) for row in parts.run.episodes(TRAIN)}
            kept = {names[name] for name in first}
            return {key: ids for key, ids in drawn(parts.run, TRAIN).items() if key in kept}

    await train(tmp_path / "one", interrupt=True)
    one, two = await train(tmp_path / "one", interrupt=False), await train(tmp_path / "two", interrupt=False)
    shared = one.keys() & two.keys()
    assert len(shared) >= 16
    assert {key: one[key] for key in shared} == {key: two[key] for key in shared}


def test_seeds_differ_by_member_run_and_task():
    def tickets(seed: int, count: int, it: GroupBuffer | None = None):
        it = it or GroupBuffer(fake_desktop.square_task, size=4, limit=8, seed=seed)
        return [it.next_request()[0] for _ in range(count)]

    seeds = [ticket.seed for seed in range(3) for ticket in tickets(seed, 12)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**53 for seed in seeds)
    before = tickets(0, 4)
    it = GroupBuffer(fake_desktop.square_task, size=4, limit=8, seed=0)
    it.restore([(before[0].group_id, 0, "open", 2, [])])
    assert [ticket.seed for ticket in tickets(0, 2, it)] == [ticket.seed for ticket in before[2:]]
    assert call_seed(1, 23) != call_seed(12, 3)
