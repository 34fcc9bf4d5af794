"""Writer of training episodes: keeps `EpisodeCounts` and the stored run in step.

Used by `recipes.training_loop` (`RunWriter`); `row_of` and `new_row` are also used by evaluations. Writes run in a
thread, one at a time.

Invariant: counts and episodes change in one transaction, in the order of the calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from safetensors import SafetensorError

from deskhand.errors import RecordError
from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.rollout.episode_record import EpisodeResult, from_record, to_record
from deskhand.rollout.groups import EpisodeRequest, Group
from deskhand.store.database import damaged
from deskhand.store.run import TRAIN, Checkpoint, EpisodeRow, GroupRow, Run
from deskhand.tasks.outcome import Scored


def row_of(result: EpisodeResult, phase: str, state: str) -> EpisodeRow:
    """Return the database row of a finished episode."""
    return EpisodeRow(
        id=result.episode_id,
        phase=phase,
        group_id=result.group_id,
        member=result.member,
        task_id=result.task_id,
        family=result.family,
        seed=result.seed,
        split=result.split,
        state=state,
        cause=None if isinstance(result.outcome, Scored) else result.outcome.cause,
        value=result.outcome.value if isinstance(result.outcome, Scored) else None,
        reward=result.reward,
        first_click=result.first_click_on_target,
        version_min=result.version_min,
        version_max=result.version_max,
        finished_at=time.time(),
    )


def new_row(request: EpisodeRequest, phase: str) -> EpisodeRow:
    """Return the database row of an episode that starts."""
    task = request.task
    return EpisodeRow(
        request.episode_id,
        phase,
        request.group_id,
        request.member,
        task.id,
        task.family,
        task.seed,
        task.split,
        "in_flight",
        started_at=time.time(),
    )


def load_result(run: Run, episode_id: str) -> EpisodeResult:
    """Return a finished episode from the store. Raises `ConfigError` if what is stored is damaged."""
    _, record, tensors = run.episode(episode_id)
    try:
        return from_record(record, tensors)
    except (LookupError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        what = f"episode {episode_id}: {type(error).__name__} {error}"
        raise damaged(run.folder / "run.sqlite", what) from error


class RunWriter:
    """Training episodes of a run: counts in memory, episodes on disk."""

    def __init__(self, run: Run) -> None:
        self.run = run
        try:
            self.counts = EpisodeCounts.from_dict(run.episode_counts())
        except (TypeError, AttributeError) as error:
            raise damaged(run.folder / "run.sqlite", f"episode counts: {error}") from error
        self._writing = asyncio.Lock()

    async def start(self, request: EpisodeRequest, group: Group | None) -> None:
        """Store an episode that starts, and the group opened for it, if any."""

        def write(counts: dict[str, Any]) -> None:
            if group is not None:
                self.run.open_group(GroupRow(group.id, group.number, group.task.family, group.task.seed, "open"))
            self.run.start_episode(new_row(request, TRAIN), counts)

        await self._update(self.counts.start, write)

    async def finish(self, result: EpisodeResult, completed: Group | None) -> None:
        """Store an episode that ended, and the state of the group that it completed, if any."""
        scored = isinstance(result.outcome, Scored)
        row = row_of(result, TRAIN, "queued" if scored else "errored")
        no_signal = completed is not None and completed.state == "closed"
        zero_variance = [member.episode_id for member in completed.scored] if completed and no_signal else []
        group = (completed.id, completed.state) if completed is not None else None

        def change() -> None:
            if isinstance(result.outcome, Scored):
                self.counts.mark_scored()
            else:
                self.counts.mark_errored(result.outcome.cause)
            self.counts.mark_done(zero_variance=len(zero_variance))

        def write(counts: dict[str, Any]) -> None:
            record, tensors = to_record(result)
            states = [(name, "zero_variance") for name in zero_variance]
            self.run.finish_episode(row, record, tensors, counts=counts, states=states, group=group)

        await self._update(change, write)

    async def commit(
        self,
        *,
        states: Mapping[str, tuple[str, int | None]],
        closed_groups: Iterable[str],
        checkpoint: Checkpoint | None,
        metrics: Iterable[Mapping[str, Any]],
    ) -> None:
        """Store trained and stale episodes together with the checkpoint that contains their update."""
        trained = sum(state == "trained" for state, _ in states.values())

        def write(counts: dict[str, Any]) -> None:
            self.run.commit(
                counts=counts, states=states, closed_groups=closed_groups, checkpoint=checkpoint, metrics=metrics
            )

        await self._update(lambda: self.counts.mark_done(trained=trained, stale=len(states) - trained), write)

    async def _update(self, change: Callable[[], None], write: Callable[[dict[str, Any]], None]) -> None:
        """Change the counts and write them; completes even if the caller is canceled."""

        async def update() -> None:
            async with self._writing:
                before = self.counts.to_dict()
                change()
                try:
                    await asyncio.to_thread(write, self.counts.to_dict())
                except BaseException:
                    self.counts.restore(before)
                    raise

        work = asyncio.ensure_future(update())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise

    async def check(self) -> dict[str, int]:
        """Return the counts by name. Raises `RecordError` if they differ from the stored episodes."""
        async with self._writing:
            self.counts.check(await asyncio.to_thread(self.run.count_states))
            return self.counts.flat()

    def recover(self) -> list[tuple[str, int, str, int, list[EpisodeResult]]]:
        """Mark episodes that a kill left in flight as errored.

        Return the unfinished groups for `GroupBuffer.restore`. Raises `ConfigError`, before any change, if the stored
        counts and episodes differ.
        """
        try:
            self.counts.check(self.run.count_states())
        except (RecordError, TypeError) as error:
            raise damaged(self.run.folder / "run.sqlite", error) from error
        self.counts.mark_errored("infrastructure", self.counts.in_flight)
        self.run.abandon_in_flight(self.counts.to_dict())
        found = []
        for group in self.run.groups():
            if group.state != "closed":
                rows = self.run.episodes(TRAIN, group_id=group.id)
                scored = [load_result(self.run, row.id) for row in rows if row.state == "queued"]
                members = max((row.member for row in rows), default=-1) + 1
                found.append((group.id, group.number, group.state, members, scored))
        return found

    def interrupted_members(self) -> dict[str, list[int]]:
        """Return, by unfinished group, the members that a kill or a stop of the run left without a result. Call it
        after `recover`."""
        found: dict[str, list[int]] = {}
        for group in self.run.groups():
            if group.state == "open":
                last = {row.member: row for row in self.run.episodes(TRAIN, group_id=group.id)}
                found[group.id] = sorted(
                    member
                    for member, row in last.items()
                    if row.state == "errored" and (row.cause == "cancelled" or not self.run.has_record(row.id))
                )
        return found
