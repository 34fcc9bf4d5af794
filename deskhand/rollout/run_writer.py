"""Ledger and store moved together. Invariant: every change of the books is in the same transaction as the change of the
episodes, and changes reach the disk in the order in which they were made.

All writing runs in a thread, one write at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.rollout.episode_record import EpisodeResult, from_record, to_record
from deskhand.rollout.groups import EpisodeRequest, Group
from deskhand.store.run import TRAIN, Checkpoint, EpisodeRow, GroupRow, Run
from deskhand.tasks.outcome import Scored


def row_of(result: EpisodeResult, purpose: str, state: str) -> EpisodeRow:
    """The database's columns of a finished episode."""
    return EpisodeRow(
        id=result.episode_id,
        phase=purpose,
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


def new_row(ticket: EpisodeRequest, purpose: str) -> EpisodeRow:
    """The database's columns of an episode that begins."""
    task = ticket.task
    return EpisodeRow(
        ticket.episode_id,
        purpose,
        ticket.group_id,
        ticket.member,
        task.id,
        task.family,
        task.seed,
        task.split,
        "in_flight",
        started_at=time.time(),
    )


def load_result(run: Run, episode_id: str) -> EpisodeResult:
    """A finished episode from the store."""
    _, record, tensors = run.episode(episode_id)
    return from_record(record, tensors)


class RunWriter:
    """The books of the training episodes of a run, in memory and on disk."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ledger = EpisodeCounts.from_dict(run.episode_counts())
        self._writing = asyncio.Lock()

    async def start(self, ticket: EpisodeRequest, group: Group | None) -> None:
        """An episode begins; `group` is the group that was opened for it, if one was."""

        def write(books: dict[str, Any]) -> None:
            if group is not None:
                self.run.open_group(GroupRow(group.id, group.number, group.task.family, group.task.seed, "open"))
            self.run.start_episode(new_row(ticket, TRAIN), books)

        await self._book(self.ledger.start, write)

    async def finish(self, result: EpisodeResult, closed: Group | None) -> None:
        """An episode ended; `closed` is the group that this closed, if it did."""
        scored = isinstance(result.outcome, Scored)
        row = row_of(result, TRAIN, "queued" if scored else "errored")
        useless = (
            [member.episode_id for member in closed.scored] if closed is not None and closed.state == "closed" else []
        )
        group = (closed.id, closed.state) if closed is not None else None

        def change() -> None:
            if isinstance(result.outcome, Scored):
                self.ledger.mark_scored()
            else:
                self.ledger.mark_errored(result.outcome.cause)
            self.ledger.mark_done(zero_variance=len(useless))

        def write(books: dict[str, Any]) -> None:
            record, tensors = to_record(result)
            states = [(name, "zero_variance") for name in useless]
            self.run.finish_episode(row, record, tensors, counts=books, states=states, group=group)

        await self._book(change, write)

    async def commit(
        self,
        *,
        states: Mapping[str, tuple[str, int | None]],
        closed_groups: Iterable[str],
        checkpoint: Checkpoint | None,
        metrics: Iterable[Mapping[str, Any]],
    ) -> None:
        """Episodes that were trained or found stale, with the checkpoint that holds what they taught."""
        trained = sum(state == "trained" for state, _ in states.values())

        def write(books: dict[str, Any]) -> None:
            self.run.commit(
                counts=books, states=states, closed_groups=closed_groups, checkpoint=checkpoint, metrics=metrics
            )

        await self._book(lambda: self.ledger.mark_done(trained=trained, stale=len(states) - trained), write)

    async def _book(self, change: Callable[[], None], write: Callable[[dict[str, Any]], None]) -> None:
        """Change the ledger and write it, as a whole even when the caller is cancelled meanwhile: memory and disk never part."""

        async def whole() -> None:
            async with self._writing:
                before = self.ledger.to_dict()
                change()
                try:
                    await asyncio.to_thread(write, self.ledger.to_dict())
                except BaseException:
                    self.ledger.restore(before)
                    raise

        work = asyncio.ensure_future(whole())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise

    async def check(self) -> str:
        """The books as a line, after they were compared with the stored episodes. Raises `RecordError` when they do not close."""
        async with self._writing:
            self.ledger.check(await asyncio.to_thread(self.run.count_states))
            return self.ledger.line()

    def recover(self) -> list[tuple[str, int, str, int, list[EpisodeResult]]]:
        """After a kill: what was in flight is lost to the infrastructure. Returns the groups that go on, for `Groups.restore`."""
        lost = self.ledger.in_flight
        self.ledger.mark_errored("infrastructure", lost)
        self.run.abandon_in_flight(self.ledger.to_dict())
        self.ledger.check(self.run.count_states())
        found = []
        for group in self.run.groups():
            if group.state != "closed":
                rows = self.run.episodes(TRAIN, group_id=group.id)
                scored = [load_result(self.run, row.id) for row in rows if row.state == "queued"]
                found.append((group.id, group.number, group.state, len(rows), scored))
        return found
