"""The asynchronous training loop. Invariant: rollouts never wait for the trainer nor for one another, beyond the staleness
bound: groups that are open or waiting are at most `(max_staleness + 1) * groups_per_step`, so what is trained is at most
`max_staleness` steps old; an episode that is older still is counted as stale and not trained.

A step: take closed groups, compute advantages, train in a thread, publish the weights, write the checkpoint and, in one
transaction, mark the episodes as trained. A kill at any moment loses only episodes that had not ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from deskhand.config.loop import LoopConfig
from deskhand.errors import ConfigError, HealthError
from deskhand.recipes.health import (
    Alert,
    HealthMetrics,
    all_errored_alert,
    find_alerts,
    no_signal_alert,
    solved_at_start_alert,
)
from deskhand.recipes.samples import group_to_samples
from deskhand.recipes.step_report import StepAccumulator, StepReport
from deskhand.rollout.episode import errored_result
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest, Group, GroupBuffer
from deskhand.rollout.run_writer import RunWriter
from deskhand.rollout.runner import RecordedRunner
from deskhand.rollout.scheduler import Scheduler
from deskhand.rollout.weight_versions import WeightVersions
from deskhand.store.run import Checkpoint, Run
from deskhand.tasks.outcome import Errored
from deskhand.tasks.task import Task
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.checkpoint import CheckpointManager, verify
from deskhand.trainer.step_metrics import StepMetrics
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.vision_probe import image_sensitivity
from deskhand.trainer.weight_sync import push_weights
from deskhand.types import Engine, PreparedImage

log = structlog.get_logger()


class GroupSource:
    """Tickets from groups, results to the journal."""

    def __init__(
        self,
        groups: GroupBuffer,
        journal: RunWriter,
        ended: Callable[[EpisodeResult, Group | None], None] = lambda result, closed: None,
    ) -> None:
        self.groups = groups
        self.journal = journal
        self._ended = ended
        """Told of every result, with the group that it closed, if it did."""
        self.exhausted = False
        self.since = StepAccumulator()
        self.closed = asyncio.Event()
        """Set when a group has closed."""

    async def next(self) -> EpisodeRequest | None:
        found = None if self.exhausted else self.groups.ticket()
        if found is None:
            return None
        ticket, opened = found
        try:
            await self.journal.start(ticket, opened)
        except asyncio.CancelledError:
            await self.on_result(errored_result(ticket, "cancelled", "the run was ended"))
            raise
        return ticket

    async def on_result(self, result: EpisodeResult) -> None:
        closed = self.groups.finish(result)
        self.since.add(result, closed)
        await self.journal.finish(result, closed)
        if isinstance(result.outcome, Errored):
            lost = {"episode": result.episode_id, "task": result.task_id, "cause": result.outcome.cause}
            log.warning("episode.unscored", **lost, message=result.outcome.message, books=await self.journal.check())
        if closed is not None:
            self.closed.set()
        self._ended(result, closed)


class TrainingLoop:
    """Joins a runner (desktops, agent, recorder, engine) with a trainer and a run folder.

    `make_task(number)` is the task of the group of that number, a pure function, so that a resumed run meets the same tasks.
    `images` resolves screens for the trainer (the recorder's `ImageCache`); `assets` is the checkpoint folder whose tokenizer
    files go into every checkpoint. `evaluate(version)` is the held-out success of the weights that the engine has, a share; what it
    found before a kill it need not find again. `alarmed` is told of what is wrong between two steps, `progress` of every step with
    its own alarms. `seed`: of what the policy draws. A run that has a checkpoint goes on from it.
    """

    def __init__(
        self,
        config: LoopConfig,
        run: Run,
        runner: RecordedRunner,
        engine: Engine,
        trainer: Trainer,
        images: Mapping[str, PreparedImage],
        assets: Path,
        make_task: Callable[[int], Task],
        *,
        seed: int = 0,
        progress: Callable[[StepReport], None] | None = None,
        alarmed: Callable[[Alert], None] | None = None,
        evaluate: Callable[[int], Awaitable[float]] | None = None,
    ) -> None:
        self.config, self.run_folder, self.runner, self.engine = config, run, runner, engine
        self.trainer, self.images, self.assets, self.progress = trainer, images, assets, progress
        self.alarmed = alarmed
        self.evaluate = evaluate
        self.checkpoints = CheckpointManager(run.folder / "checkpoints")
        self.journal = RunWriter(run)
        self.lineage = WeightVersions(run.segments())
        limit = (config.max_staleness + 1) * config.groups_per_step
        equal_teaches = trainer.algorithm.uses_critic
        groups = GroupBuffer(
            make_task,
            size=config.group_size,
            limit=limit,
            max_refills=config.max_group_retries,
            equal_teaches=equal_teaches,
            seed=seed,
        )
        self.source = GroupSource(groups, self.journal, self._when_ended)
        self.scheduler = Scheduler(
            self.source,
            runner.run,
            config.max_concurrent_episodes,
            parked_s=lambda: runner.lot.total_s if runner.lot else 0.0,
        )
        self._pending_states: dict[str, tuple[str, int | None]] = {}
        self._pending_groups: list[str] = []
        self._pending_metrics: list[dict[str, Any]] = []
        self._began, self._steps_at_begin = time.monotonic(), 0
        self._vitals: list[HealthMetrics] = []
        self._told: set[tuple[str, str]] = set()
        """Signs that were said of a family, which are said once."""

    async def run(self) -> None:
        """Train up to `config.steps`. Cancelling it ends the episodes, keeps what has ended and re-raises.

        Raises `InfrastructureError` when nothing but outages happens, `ConfigError` when the checkpoint is unreadable,
        `HealthError` when the model does not see.
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
            await asyncio.to_thread(self._restore, last)
            self.source.groups.restore(await asyncio.to_thread(self.journal.recover))
            known = await asyncio.to_thread(self.run_folder.groups)
            self.source.groups.next_number = max((group.number + 1 for group in known), default=0)
            past = await asyncio.to_thread(self.run_folder.metrics)
            self._vitals = [vitals for vitals in map(HealthMetrics.recorded, past) if vitals is not None]
        if last is not None or self.engine.version != self.trainer.version or self.trainer.policy.is_rounded:
            await push_weights(self.trainer.policy, self.engine, self.trainer.version)
        self._steps_at_begin, self._began = self.trainer.steps, time.monotonic()

    def _restore(self, last: Checkpoint) -> None:
        """Bring the trainer to the last checkpoint. Raises `ConfigError` when it does not fit, or is damaged.

        The run itself cannot go back to an older one that is sound: its books say what the later steps were trained on.
        """
        try:
            verify(last.path)
        except ConfigError as error:
            older = self.checkpoints.latest_valid_before(last.step)
            mend = f"a new run can start from the last sound one: --set model={older}" if older else "start a new run"
            raise ConfigError(f"{error}; {mend}") from error
        self.checkpoints.load(self.trainer, last.step)
        self.trainer.versions_ahead = last.version - last.step
        newest = self.run_folder.newest_version()
        if life := self.lineage.resume(last.step, last.version, newest):
            self.run_folder.start_segment(life.step, life.first)
            log.warning("versions", undone=f"{last.version + 1} to {newest}", next=life.first)

    async def _train(self) -> None:
        """Steps until the last one; what is pending is committed even when this is cancelled."""
        await self._rate()
        while self.trainer.steps < self.config.total_steps:
            before = time.monotonic()
            groups = await self._batch()
            await self._uninterrupted(self._step(groups, time.monotonic() - before))
            await self._rate()

    def _is_due(self, step: int) -> bool:
        every = self.config.eval_every
        return (
            self.evaluate is not None
            and every > 0
            and step > 0
            and (step % every == 0 or step >= self.config.total_steps)
        )

    async def _rate(self) -> None:
        """Evaluate the weights of now where that is due. Nothing is published meanwhile, so one version plays all held-out tasks;
        training episodes go on beside them."""
        step = self.trainer.steps
        if self.evaluate is not None and self._is_due(step):
            success = await self.evaluate(self.trainer.version)
            best = await asyncio.to_thread(self.checkpoints.record_eval, step, success)
            log.info("evaluated", step=step, success=round(success, 4), best=best)

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
                self.scheduler.wake()
            waiting = groups.waiting()
            if len(waiting) >= self.config.groups_per_step:
                return waiting[: self.config.groups_per_step]
            await self.source.closed.wait()

    def _fresh(self, result: EpisodeResult) -> bool:
        return result.version_min >= 0 and self._age(result) <= self.config.max_staleness

    def _age(self, result: EpisodeResult) -> int:
        """Steps from the oldest weights that sampled an episode to those of now; below 0 where a kill has undone steps since."""
        return self.trainer.steps - self.lineage.step_of(result.version_min)

    async def _step(self, groups: list[Group], waited_s: float) -> None:
        fresh = [result for group in groups for result in group.scored if self._fresh(result)]
        stale = [result for group in groups for result in group.scored if not self._fresh(result)]
        samples = [
            sample for group in groups for sample in group_to_samples(group, self.trainer.algorithm, self._fresh)
        ]
        ages = [abs(self._age(result)) for result in fresh]
        undone = sum(self.lineage.is_rolled_back(result.version_max) for result in fresh)
        done, seen = await asyncio.to_thread(self._train_on, samples)
        self.trainer.versions_ahead = self.lineage.offset
        await push_weights(self.trainer.policy, self.engine, self.trainer.version)
        self.source.groups.remove(groups)
        self.scheduler.wake()
        self._pending_states |= {result.episode_id: ("trained", done.step) for result in fresh}
        self._pending_states |= {result.episode_id: ("stale", None) for result in stale}
        self._pending_groups += [group.id for group in groups]
        report = self._report(asdict(done), seen, float(np.mean(ages)) if ages else 0.0, undone, waited_s)
        self._pending_metrics.append(report.metrics())
        if done.step % self.config.save_every == 0 or done.step >= self.config.total_steps or self._is_due(done.step):
            await self._commit()
        log.info("step", step=done.step, reward=report.reward, success=report.success, loss=done.loss,
                 books=await self.journal.check())  # fmt: skip
        for alarm in report.alarms:
            log.warning("alarm", step=done.step, **alarm.to_dict())
        if self.progress is not None:
            self.progress(report)
        self._stop_when_blind()

    def _train_on(self, samples: list[TrainingSample]) -> tuple[StepMetrics, float | None]:
        """A step, and from time to time, before it, how much the model sees. In a thread."""
        health, seen = self.config.health, None
        if health.vision_probe_every and self.trainer.steps % health.vision_probe_every == 0:
            seen = image_sensitivity(self.trainer.policy, samples, self.images, health.vision_probe_samples)
        return self.trainer.step(samples, self.images), seen

    def _when_ended(self, result: EpisodeResult, closed: Group | None) -> None:
        """Say what no step would say: of a task by its name, and of groups that let no step be taken."""
        if result.solved_without_action:
            self._raise(solved_at_start_alert(result.family), result.family)
        if closed is None or closed.state != "closed":
            return
        if not closed.scored and isinstance(result.outcome, Errored) and result.outcome.cause != "cancelled":
            self._raise(all_errored_alert(result.family, len(closed.unscored), result.outcome.message), result.family)
        since = self.source.since
        reward = float(np.mean(since.rewards)) if since.rewards else None
        alarm = no_signal_alert(since.zero_variance_groups, since.groups, reward, self.config.health)
        if alarm is not None:
            self._raise(alarm)

    def _raise(self, alarm: Alert, family: str = "") -> None:
        """Tell of an alarm between two steps; one of a family once."""
        if family and (alarm.metric, family) in self._told:
            return
        self._told.add((alarm.metric, family))
        log.warning("alarm", step=self.trainer.steps, **alarm.to_dict())
        if self.alarmed is not None:
            self.alarmed(alarm)

    def _stop_when_blind(self) -> None:
        """Raise `HealthError` when the last canaries all say that the model does not look."""
        health = self.config.health
        last = [vitals.sight for vitals in self._vitals if vitals.sight is not None][-health.max_failed_vision_probes :]
        if (
            health.max_failed_vision_probes
            and len(last) == health.max_failed_vision_probes
            and max(last) < health.min_image_sensitivity
        ):
            raise HealthError(
                f"step {self.trainer.steps}: the model does not see: in the last {len(last)} canaries swapped screenshots changed "
                f"its replies by at most {max(last):.2g} nats (loop.health.min_image_sensitivity is {health.min_image_sensitivity:g}); "
                "check that the engine gets the pictures"
            )

    async def _commit(self) -> None:
        trained = sorted(name for name, (state, _) in self._pending_states.items() if state == "trained")
        path = await asyncio.to_thread(self.checkpoints.save, self.trainer, self.assets, {"trained": trained})
        states, groups, metrics = self._pending_states, self._pending_groups, self._pending_metrics
        self._pending_states, self._pending_groups, self._pending_metrics = {}, [], []
        await self.journal.commit(
            states=states, closed_groups=groups, checkpoint=self._checkpoint(path), metrics=metrics
        )

    def _checkpoint(self, path: Path) -> Checkpoint:
        return Checkpoint(self.trainer.steps, self.trainer.version, path, time.time())

    def _report(
        self, trainer: dict[str, Any], seen: float | None, staleness: float, undone: int, waited_s: float
    ) -> StepReport:
        since, self.source.since = self.source.since, StepAccumulator()
        vitals = since.vitals(trainer, seen)
        raised = find_alerts(vitals, self._vitals, self.config.health)
        self._vitals.append(vitals)
        ledger, step = self.journal.ledger, self.trainer.steps
        done, elapsed_s = step - self._steps_at_begin, time.monotonic() - self._began
        return StepReport(
            step=step,
            steps=self.config.total_steps,
            version=self.engine.version,
            episodes=ledger.started - ledger.in_flight,
            episodes_per_minute=self.scheduler.episodes_per_minute,
            reward=float(np.mean(since.rewards)) if since.rewards else None,
            score=float(np.mean(since.scores)) if since.scores else None,
            success=float(np.mean(since.successes)) if since.successes else None,
            first_click=float(np.mean(since.first_clicks)) if since.first_clicks else None,
            reply_errors=since.faults,
            unscored_share=ledger.unscored_share,
            zero_variance_groups=since.zero_variance_groups,
            staleness=staleness,
            num_resampled=undone,
            rollout_wait_s=waited_s,
            eta_s=(self.config.total_steps - step) * elapsed_s / max(1, done),
            elapsed_s=elapsed_s,
            quota_wait_s=round(self.runner.lot.total_s, 1) if self.runner.lot else 0.0,
            parked=self.runner.lot.snapshot() if self.runner.lot else [],
            books=ledger.to_dict(),
            trainer=trainer,
            vitals=vitals,
            alarms=tuple(raised),
        )
