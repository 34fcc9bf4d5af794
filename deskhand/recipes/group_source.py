"""Episodes of groups for the scheduler. Used by `recipes.training_loop`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from deskhand.recipes.step_report import FamilyShares, StepAccumulator
from deskhand.rollout.episode import errored_result
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest, Group, GroupBuffer
from deskhand.rollout.run_writer import RunWriter
from deskhand.tasks.outcome import Errored

log = structlog.get_logger()


class GroupSource:
    """Episode source of the scheduler: requests from groups, results to the run."""

    def __init__(
        self,
        groups: GroupBuffer,
        writer: RunWriter,
        on_end: Callable[[EpisodeResult, Group | None], None] = lambda result, completed: None,
    ) -> None:
        self.groups = groups
        self.writer = writer
        self._on_end = on_end
        """Called with every result and the group that it completed, if any."""
        self.exhausted = False
        self.since_step = StepAccumulator()
        self.shares = FamilyShares()
        self.group_completed = asyncio.Event()

    async def next(self) -> EpisodeRequest | None:
        found = None if self.exhausted else self.groups.next_request()
        if found is None:
            return None
        request, opened = found
        if opened is not None:
            self.shares.started[opened.task.family] += 1
        try:
            await self.writer.start(request, opened)
        except asyncio.CancelledError:
            await self.on_result(errored_result(request, "cancelled", "the run was stopped"))
            raise
        return request

    async def on_result(self, result: EpisodeResult) -> None:
        completed = self.groups.finish(result)
        self.since_step.add(result, completed)
        if completed is not None and completed.state == "closed" and completed.scored:
            self.shares.zero_variance[completed.task.family] += 1
        await self.writer.finish(result, completed)
        if isinstance(result.outcome, Errored):
            fields = {"episode": result.episode_id, "task": result.task_id, "cause": result.outcome.cause}
            log.warning("episode.errored", **fields, message=result.outcome.message, **await self.writer.check())
        if completed is not None:
            self.group_completed.set()
        self._on_end(result, completed)
