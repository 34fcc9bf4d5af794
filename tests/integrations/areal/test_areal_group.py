"""Groups of episodes for AReaL: one that fails is a gap, one that is late is cut off, and every desktop comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import fake_desktop
import pytest
from patience import limit

from deskhand.errors import InfrastructureError
from deskhand.integrations.areal.workflow import run_group
from deskhand.rollout.episode import errored_result
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.tasks.outcome import Errored, Scored

TASK = fake_desktop.square_task(1)


def scored(ticket: EpisodeRequest, reward: float) -> EpisodeResult:
    return replace(errored_result(ticket, "cancelled", ""), outcome=Scored(reward), reward=reward)


async def test_one_outage_leaves_a_gap_and_the_others_go_on():
    async def play(ticket: EpisodeRequest) -> EpisodeResult:
        if ticket.member == 1:
            raise InfrastructureError("told to fail")
        await asyncio.sleep(0.01)
        return scored(ticket, float(ticket.member == 0))

    group, results = await run_group("g", TASK, 4, play, timeout_s=5)
    assert [result.reward for result in results] == [1.0, None, 0.0, 0.0]
    assert isinstance(results[1].outcome, Errored)
    assert results[1].outcome.cause == "infrastructure"
    assert len(group.scored) == 3
    assert group.has_signal


async def test_errored_episodes_are_replaced_while_there_are_retries():
    async def play(ticket: EpisodeRequest) -> EpisodeResult:
        if ticket.member < 2:
            return errored_result(ticket, "infrastructure", "lost")
        return scored(ticket, ticket.member / 10)

    group, results = await run_group("g", TASK, 2, play, timeout_s=5, max_retries=3)
    assert len(group.scored) == 2
    assert len(results) == 4
    assert group.retries_left == 1


async def test_what_is_late_is_cut_off_before_the_group_returns():
    acting: set[int] = set()

    async def play(ticket: EpisodeRequest) -> EpisodeResult:
        acting.add(ticket.member)
        try:
            await asyncio.sleep(0 if ticket.member == 0 else 60)
            return scored(ticket, 1.0)
        finally:
            await asyncio.sleep(0.01)  # giving the desktop back takes time
            acting.discard(ticket.member)

    group, results = await run_group("g", TASK, 3, play, timeout_s=limit(0.1))
    assert not acting
    assert [type(result.outcome) for result in results] == [Scored, Errored, Errored]
    assert not group.has_signal


async def test_a_cancelled_group_ends_its_episodes_first():
    ended: list[int] = []

    async def play(ticket: EpisodeRequest) -> EpisodeResult:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(ticket.member)
        raise AssertionError("it was cancelled")

    work = asyncio.ensure_future(run_group("g", TASK, 3, play, timeout_s=60))
    await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert sorted(ended) == [0, 1, 2]
