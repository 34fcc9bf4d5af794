"""The asynchronous training loop. Invariant: rollouts never wait for the trainer nor for one another, beyond the staleness
bound: groups that are open or waiting are at most `(max_staleness + 1) * groups_per_step`, so what is trained is at most
`max_staleness` versions old; an episode that is older still is counted as stale and not trained.

A step: take closed groups, compute advantages, train in a thread, publish the weights, write the checkpoint and, in one
transaction, mark the episodes as trained. A kill at any moment loses only episodes that had not ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import structlog

from deskhand.algorithms.grpo import group_advantages
from deskhand.engines.base import Engine, PreparedImage
from deskhand.errors import ConfigError
from deskhand.rollout.config import LoopConfig
from deskhand.rollout.episode import unscored_result
from deskhand.rollout.groups import Group, Groups, Ticket
from deskhand.rollout.journal import Journal
from deskhand.rollout.record import EpisodeResult
from deskhand.rollout.runner import Runner
from deskhand.rollout.scheduler import Scheduler
from deskhand.store.run import Checkpoint, Run
from deskhand.tasks.outcome import Scored, Unscored
from deskhand.tasks.task import Task
from deskhand.training.batch import TrainingSample
from deskhand.training.checkpoint import Checkpoints
from deskhand.training.publish import publish
from deskhand.training.trainer import Trainer

log = structlog.get_logger()


@dataclass(frozen=True)
class Progress:
    """What a step did; for a live line, and kept as the step's metrics."""

    step: int
    steps: int
    version: int
    episodes: int
    """Training episodes that ended so far."""
    episodes_per_minute: float
    reward: float
    """Mean over scored episodes that ended since the last step, zero-variance groups included."""
    success: float
    first_click: float | None
    """Share of those whose first click hit the target."""
    faults: dict[str, float]
    """Share of the replies since the last step that were not performed, by kind: "format", "action" and "truncated"."""
    unscored_share: float
    """Of all episodes that ended so far."""
    zero_variance_groups: int
    """Since the last step."""
    staleness: float
    """Mean number of versions between the oldest sampled token of an episode and the weights that were trained."""
    rollout_wait_s: float
    """How long the trainer waited for rollouts."""
    eta_s: float
    elapsed_s: float
    """Since the loop began, or was resumed."""
    books: dict[str, Any]
    trainer: dict[str, Any]
    """The trainer's metrics of this step."""

    def metrics(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key not in ("steps", "eta_s") and value is not None}


@dataclass
class _Since:
    """What ended since the last step."""

    rewards: list[float] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)
    first_clicks: list[bool] = field(default_factory=list)
    replies: Counter[str] = field(default_factory=Counter)
    """Of scored episodes, by what was wrong with them; "" for nothing."""
    zero_variance_groups: int = 0


class TrainingSource:
    """Tickets from groups, results to the journal."""

    def __init__(self, groups: Groups, journal: Journal) -> None:
        self.groups = groups
        self.journal = journal
        self.exhausted = False
        self.since = _Since()
        self.closed = asyncio.Event()
        """Set when a group has closed."""

    async def next(self) -> Ticket | None:
        found = None if self.exhausted else self.groups.ticket()
        if found is None:
            return None
        ticket, opened = found
        try:
            await self.journal.start(ticket, opened)
        except asyncio.CancelledError:
            await self.finished(unscored_result(ticket, "cancelled", "the run was ended"))
            raise
        return ticket

    async def finished(self, result: EpisodeResult) -> None:
        closed = self.groups.finish(result)
        if isinstance(result.outcome, Scored):
            self.since.rewards.append(result.reward or 0.0)
            self.since.successes.append(result.success)
            self.since.replies.update(step.fault for step in result.transcript.steps)
            if result.first_click_on_target is not None:
                self.since.first_clicks.append(result.first_click_on_target)
        self.since.zero_variance_groups += closed is not None and closed.state == "closed"
        await self.journal.finish(result, closed)
        if isinstance(result.outcome, Unscored):
            lost = {"episode": result.episode_id, "task": result.task_id, "cause": result.outcome.cause}
            log.warning("episode.unscored", **lost, message=result.outcome.message, books=await self.journal.check())
        if closed is not None:
            self.closed.set()


class TrainingLoop:
    """Joins a runner (desktops, agent, recorder, engine) with a trainer and a run folder.

    `make_task(number)` is the task of the group of that number, a pure function, so that a resumed run meets the same tasks.
    `images` resolves screens for the trainer (the recorder's `ImageCache`); `assets` is the checkpoint folder whose tokenizer
    files go into every checkpoint. A run that has a checkpoint goes on from it.
    """

    def __init__(
        self,
        config: LoopConfig,
        run: Run,
        runner: Runner,
        engine: Engine,
        trainer: Trainer,
        images: Mapping[str, PreparedImage],
        assets: Path,
        make_task: Callable[[int], Task],
        *,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.config, self.run_folder, self.runner, self.engine = config, run, runner, engine
        self.trainer, self.images, self.assets, self.progress = trainer, images, assets, progress
        self.checkpoints = Checkpoints(run.folder / "checkpoints")
        self.journal = Journal(run)
        limit = (config.max_staleness + 1) * config.groups_per_step
        groups = Groups(make_task, size=config.group_size, limit=limit, max_refills=config.max_refills)
        self.source = TrainingSource(groups, self.journal)
        self.scheduler = Scheduler(self.source, runner.run, config.desktops)
        self._pending_states: dict[str, tuple[str, int | None]] = {}
        self._pending_groups: list[str] = []
        self._pending_metrics: list[dict[str, Any]] = []
        self._began, self._steps_at_begin = time.monotonic(), 0

    async def run(self) -> None:
        """Train up to `config.steps`. Cancelling it ends the episodes, keeps what has ended and re-raises.

        Raises `InfrastructureError` when nothing but outages happens, `ConfigError` when the checkpoint is unreadable.
        """
        await self._prepare()
        rollouts = asyncio.create_task(self.scheduler.run())
        training = asyncio.create_task(self._train())
        try:
            await asyncio.wait({rollouts, training}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.source.exhausted = True
            for work in (training, rollouts):
                work.cancel()
            results = await asyncio.gather(training, rollouts, return_exceptions=True)
            if self._pending_metrics:
                await self._commit()
            log.info("books", line=await self.journal.check())
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error

    async def _prepare(self) -> None:
        """Go on from the last checkpoint, or write that of version 0."""
        last = await asyncio.to_thread(self.run_folder.checkpoint)
        if last is None:
            path = await asyncio.to_thread(self.checkpoints.save, self.trainer, self.assets)
            await self.journal.commit(states={}, closed_groups=[], checkpoint=self._checkpoint(path), metrics=[])
        else:
            restored = await asyncio.to_thread(self.checkpoints.load, self.trainer, last.step)
            if restored is None:
                raise ConfigError(f"checkpoint {last.path} is gone; restore the folder, or start a new run")
            self.source.groups.restore(await asyncio.to_thread(self.journal.recover))
            known = await asyncio.to_thread(self.run_folder.groups)
            self.source.groups.next_number = max((group.number + 1 for group in known), default=0)
        if last is not None or self.engine.version != self.trainer.steps:
            await publish(self.trainer.policy, self.engine, self.trainer.steps)
        self._steps_at_begin, self._began = self.trainer.steps, time.monotonic()

    async def _train(self) -> None:
        """Steps until the last one; what is pending is committed even when this is cancelled."""
        while self.trainer.steps < self.config.steps:
            before = time.monotonic()
            groups = await self._batch()
            await self._uninterrupted(self._step(groups, time.monotonic() - before))

    async def _uninterrupted(self, step: Any) -> None:
        """A step runs to its end even when the loop is cancelled: its thread cannot be stopped, and so nothing of it is lost."""
        work = asyncio.ensure_future(step)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise

    async def _batch(self) -> list[Group]:
        """The oldest closed groups, as many as a step takes, after groups that are altogether stale were put aside."""
        groups = self.source.groups
        while True:
            self.source.closed.clear()
            old = [group for group in groups.waiting() if not any(self._fresh(result) for result in group.scored)]
            for group in old:
                self._pending_states |= {result.episode_id: ("stale", None) for result in group.scored}
                self._pending_groups.append(group.id)
            if old:
                groups.remove(old)
                self.scheduler.changed()
            waiting = groups.waiting()
            if len(waiting) >= self.config.groups_per_step:
                return waiting[: self.config.groups_per_step]
            await self.source.closed.wait()

    def _fresh(self, result: EpisodeResult) -> bool:
        return result.version_min >= 0 and self.trainer.steps - result.version_min <= self.config.max_staleness

    async def _step(self, groups: list[Group], waited_s: float) -> None:
        version = self.trainer.steps
        fresh = [result for group in groups for result in group.scored if self._fresh(result)]
        stale = [result for group in groups for result in group.scored if not self._fresh(result)]
        samples = [sample for group in groups for sample in samples_of(group, self.config.advantage, self._fresh)]
        done = await asyncio.to_thread(self.trainer.step, samples, self.images)
        await publish(self.trainer.policy, self.engine, self.trainer.steps)
        self.source.groups.remove(groups)
        self.scheduler.changed()
        self._pending_states |= {result.episode_id: ("trained", done.step) for result in fresh}
        self._pending_states |= {result.episode_id: ("stale", None) for result in stale}
        self._pending_groups += [group.id for group in groups]
        ages = [version - result.version_min for result in fresh]
        report = self._report(asdict(done), float(np.mean(ages)) if ages else 0.0, waited_s)
        self._pending_metrics.append(report.metrics())
        if done.step % self.config.checkpoint_every == 0 or done.step >= self.config.steps:
            await self._commit()
        log.info("step", step=done.step, reward=round(report.reward, 4), success=round(report.success, 4), loss=done.loss,
                 books=await self.journal.check())  # fmt: skip
        if self.progress is not None:
            self.progress(report)

    async def _commit(self) -> None:
        path = await asyncio.to_thread(self.checkpoints.save, self.trainer, self.assets)
        states, groups, metrics = self._pending_states, self._pending_groups, self._pending_metrics
        self._pending_states, self._pending_groups, self._pending_metrics = {}, [], []
        await self.journal.commit(states=states, closed_groups=groups, checkpoint=self._checkpoint(path), metrics=metrics)

    def _checkpoint(self, path: Path) -> Checkpoint:
        return Checkpoint(self.trainer.steps, self.trainer.steps, path, time.time())

    def _report(self, trainer: dict[str, Any], staleness: float, waited_s: float) -> Progress:
        since, self.source.since = self.source.since, _Since()
        ledger, step = self.journal.ledger, self.trainer.steps
        done, elapsed_s = step - self._steps_at_begin, time.monotonic() - self._began
        return Progress(
            step=step,
            steps=self.config.steps,
            version=self.engine.version,
            episodes=ledger.started - ledger.in_flight,
            episodes_per_minute=self.scheduler.episodes_per_minute,
            reward=float(np.mean(since.rewards)) if since.rewards else 0.0,
            success=float(np.mean(since.successes)) if since.successes else 0.0,
            first_click=float(np.mean(since.first_clicks)) if since.first_clicks else None,
            faults={kind: since.replies[kind] / max(1, since.replies.total()) for kind in ("format", "action", "truncated")},
            unscored_share=ledger.unscored_share,
            zero_variance_groups=since.zero_variance_groups,
            staleness=staleness,
            rollout_wait_s=waited_s,
            eta_s=(self.config.steps - step) * elapsed_s / max(1, done),
            elapsed_s=elapsed_s,
            books=ledger.to_dict(),
            trainer=trainer,
        )


def samples_of(
    group: Group, normalise: Literal["std", "none"], fresh: Callable[[EpisodeResult], bool] = lambda result: True
) -> list[TrainingSample]:
    """The rows of a group's episodes with their advantages. The group's mean is over all its scored members; only fresh ones
    give rows."""
    scored = [result for result in group.scored if isinstance(result.outcome, Scored)]
    rewards = [result.reward if result.reward is not None else float("nan") for result in scored]
    advantages = group_advantages(rewards, [True] * len(rewards), normalise).values
    return [
        TrainingSample(sequence, float(advantage), result.episode_id, 1.0)
        for result, advantage in zip(scored, advantages, strict=True)
        if fresh(result)
        for sequence in result.graph.sequences()
    ]
