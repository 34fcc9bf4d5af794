"""The episodes of one task, at the same time, each on its own desktop. Invariant: whatever happens to one episode, the others go
on; when `play_group` returns, no episode of the group acts any more and every desktop is given back.

An outage leaves a gap, which may be refilled; it is never a reward. What runs beyond the time of the group is cut off and unscored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from deskhand.rollout.episode import errored_result
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest, Group
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import Task

RunMember = Callable[[EpisodeRequest], Awaitable[EpisodeResult]]
"""Runs one episode; raises nothing but cancellation and `ConfigError`."""


async def run_group(
    name: str, task: Task, size: int, play: RunMember, *, timeout_s: float, refills: int = 0
) -> tuple[Group, list[EpisodeResult]]:
    """`size` episodes of `task`; returns the group, with its scored members, and all results in the order of the members.

    `refills` new episodes stand in for unscored ones, all members together.
    """
    group = Group(name, 0, task, size, refills)
    results: list[EpisodeResult] = []

    async def fill() -> None:
        while True:
            number, group.next_member = group.next_member, group.next_member + 1
            ticket = EpisodeRequest(f"{name}-{number}", task, name, number)
            group.in_flight += 1
            try:
                result = await play(ticket)
            except asyncio.CancelledError:
                results.append(errored_result(ticket, "cancelled", f"the group's {timeout_s:g} s were over"))
                raise
            except Exception as error:
                result = errored_result(ticket, "infrastructure", f"{type(error).__name__}: {error}")
            finally:
                group.in_flight -= 1
            results.append(result)
            if isinstance(result.outcome, Scored) or group.retries_left == 0:
                return
            group.retries_left -= 1

    members = [asyncio.ensure_future(fill()) for _ in range(size)]
    try:
        await asyncio.wait(members, timeout=timeout_s)
    finally:
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    results.sort(key=lambda result: result.member)
    group.scored = [result for result in results if isinstance(result.outcome, Scored)]
    group.unscored = [result.episode_id for result in results if not isinstance(result.outcome, Scored)]
    group.state = "queued" if group.has_signal else "closed"
    return group, results
