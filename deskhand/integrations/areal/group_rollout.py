"""Runs the episodes of one group concurrently, each on its own desktop.

Used by `workflow`. A failing episode does not affect the others. An outage leaves a gap, which may be retried; it is
never a reward. When `run_group` returns, no episode is running and every desktop is released; episodes beyond the
timeout are errored.
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
"""Runs one episode; raises only cancellation and `ConfigError`."""


async def run_group(
    name: str, task: Task, size: int, run_member: RunMember, *, timeout_s: float, max_retries: int = 0
) -> tuple[Group, list[EpisodeResult]]:
    """Run `size` episodes of `task`; returns the group with its scored members, and all results in member order.

    Up to `max_retries` new episodes, in total, replace errored ones.
    """
    group = Group(name, 0, task, size, max_retries)
    results: list[EpisodeResult] = []

    async def run_slot() -> None:
        while True:
            number, group.next_member = group.next_member, group.next_member + 1
            request = EpisodeRequest(f"{name}-{number}", task, name, number)
            group.in_flight += 1
            try:
                result = await run_member(request)
            except asyncio.CancelledError:
                results.append(errored_result(request, "cancelled", f"group timeout of {timeout_s:g} s"))
                raise
            except Exception as error:
                result = errored_result(request, "infrastructure", f"{type(error).__name__}: {error}")
            finally:
                group.in_flight -= 1
            results.append(result)
            if isinstance(result.outcome, Scored) or group.retries_left == 0:
                return
            group.retries_left -= 1

    members = [asyncio.ensure_future(run_slot()) for _ in range(size)]
    try:
        await asyncio.wait(members, timeout=timeout_s)
    finally:
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    results.sort(key=lambda result: result.member)
    group.scored = [result for result in results if isinstance(result.outcome, Scored)]
    group.errored = [result.episode_id for result in results if not isinstance(result.outcome, Scored)]
    group.state = "queued" if group.has_signal else "closed"
    return group, results
