"""Asynchronous training loop: rollouts and training steps run concurrently.

Used by `recipes.assemble`; start with `TrainingLoop.run`. A step takes complete groups, computes advantages, trains in
a thread, pushes the weights to the engine, and commits the checkpoint with the episodes it trained in one transaction.
A kill loses only episodes in flight.

Invariant: trained episodes are at most `max_staleness` steps old. At most `(max_staleness + 1) * groups_per_step`
groups are open or queued, and a step waits for slow groups before they become too old (`GroupBuffer.next_batch`), so
families are trained in the proportions in which they are started. Only a resumed run may find older episodes; they are
counted as stale and not trained. Replayed episodes (`recipes.replay`) are at most `max_replay_staleness` steps old.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import structlog

from deskhand.config.loop import LoopConfig
from deskhand.errors import ConfigError
from deskhand.models.load import load_processors
from deskhand.recipes.group_source import EpisodeAlerts, GroupSource
from deskhand.recipes.health import check_probes, find_alerts
from deskhand.recipes.health_rules import IMAGE_SENSITIVITY, PUBLISH_KL, STALE, Alert
from deskhand.recipes.process_memory import memory_metrics, return_freed_memory
from deskhand.recipes.publish_probe import PublishProbe
from deskhand.recipes.replay import ReplayBuffer
from deskhand.recipes.samples import groups_to_samples
from deskhand.recipes.step_report import SCHEMA_VERSION, StepAccumulator, StepReport
from deskhand.recipes.step_times import StepTimes
from deskhand.recorder.image_check import check_preprocessing
from deskhand.recorder.images import ImageCache
from deskhand.rollout.curriculum import Curriculum
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import Group, GroupBuffer
from deskhand.rollout.run_writer import RunWriter
from deskhand.rollout.runner import RecordedRunner
from deskhand.rollout.scheduler import Scheduler
from deskhand.rollout.success_statistics import SuccessStatistics
from deskhand.rollout.weight_versions import WeightVersions
from deskhand.store.run import TRAIN, Checkpoint, Run
from deskhand.tasks.task import Task
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.checkpoint import CheckpointManager, verify
from deskhand.trainer.phase_timer import PhaseTimer
from deskhand.trainer.step_metrics import StepMetrics
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.vision_probe import image_sensitivity
from deskhand.trainer.weight_sync import push_weights
from deskhand.types import Engine, PreparedImage

log = structlog.get_logger()
T = TypeVar("T")

MAX_EQUAL_IN_FLIGHT = 2
"""Episodes in flight of a group that may stop early: as many as it needs to be judged."""


class TrainingLoop:
    """Training loop of a run; resumes from the last checkpoint if there is one.

    Args:
        runner: Runs episodes with desktops, agent, recorder and engine.
        images: Screenshots for the trainer (the recorder's `ImageCache`).
        assets: Checkpoint folder whose tokenizer files are copied into every checkpoint.
        make_task: Returns the task of the group with a given number: a `Curriculum`, or a pure function, so that a
            resumed run has the same tasks.
        member_task: Returns the task of a group's member, given the group's task; None: that of the group.
        seed: Base of the sampling seeds.
        on_step: Called after every step.
        on_alert: Called with alerts raised between steps; those of a step are in its report.
        evaluate: Returns the success rate of the engine's weights on the validation split, given their version.
    """

    def __init__(  # noqa: PLR0913
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
        member_task: Callable[[Task, int], Task] | None = None,
        seed: int = 0,
        on_step: Callable[[StepReport], None] | None = None,
        on_alert: Callable[[Alert], None] | None = None,
        evaluate: Callable[[int], Awaitable[float]] | None = None,
    ) -> None:
        self.config, self.run_folder, self.runner, self.engine = config, run, runner, engine
        self.trainer, self.images, self.assets = trainer, images, assets
        self.on_step, self.make_task = on_step, make_task
        self.evaluate = evaluate
        self.checkpoints = CheckpointManager(run.folder / "checkpoints")
        self.writer = RunWriter(run)
        self.versions = WeightVersions(run.segments())
        step_of = self.versions.step_of
        statistics = SuccessStatistics(
            config.group_size, config.success_decay, step_of, lambda: step_of(engine.version)
        )
        if isinstance(make_task, Curriculum):
            make_task.follow(statistics)
        groups = GroupBuffer(
            make_task,
            size=config.group_size,
            limit=(config.max_staleness + 1) * config.groups_per_step,
            max_retries=config.max_group_retries,
            keep_zero_variance=trainer.objective.trains_equal_rewards,
            seed=seed,
            member_task=member_task,
            current_step=statistics.now,
            stops=lambda group: statistics.stops(group, config.early_stop_probability),
            max_equal_in_flight=MAX_EQUAL_IN_FLIGHT if config.early_stop_probability else None,
        )
        alerts = EpisodeAlerts(config.health, lambda: trainer.steps, on_alert)
        self.source = GroupSource(groups, self.writer, statistics, alerts, self._release_images)
        self.scheduler = Scheduler(
            self.source,
            runner.run,
            config.max_concurrent_episodes,
            num_judging=runner.num_judging,
            quota_wait_s=self._quota_wait_s,
        )
        # Always the same thread: the C library keeps freed memory per thread, about a step's peak in each.
        self._trainer_thread = ThreadPoolExecutor(1, "trainer")
        self.probe = PublishProbe(
            engine, trainer.policy, images, runner.recorder.renderer, config.health, self._trainer_thread
        )
        self.replay = ReplayBuffer(config, trainer.algorithm, self.versions.step_of)
        self._pending_states: dict[str, tuple[str, int | None]] = {}
        self._pending_groups: list[str] = []
        self._num_dropped = 0  # scored episodes of groups that were dropped as stale since the last step
        self._pending_metrics: list[dict[str, Any]] = []
        self._started, self._first_step = time.monotonic(), 0
        self._phases, self._times = PhaseTimer(), StepTimes(engine, self.scheduler)
        self._past_metrics: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Train until `config.total_steps`. Canceling it stops the episodes and stores those that ended.

        Raises:
            InfrastructureError: Too many consecutive episodes errored.
            ConfigError: The checkpoint is unreadable or does not match.
            HealthError: The policy ignores its images.
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
            self._trainer_thread.shutdown(wait=False)
            log.info("episodes.counted", **await self.writer.check())
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error

    async def _in_trainer_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._trainer_thread, function, *arguments)

    async def _prepare(self) -> None:
        """Check the preprocessing, then restore the last checkpoint or write the one of version 0."""
        if isinstance(self.images, ImageCache):
            await asyncio.to_thread(check_preprocessing, self.images, load_processors(str(self.assets))[1])
        last = await asyncio.to_thread(self.run_folder.checkpoint)
        if last is None:
            path = await self._in_trainer_thread(self.checkpoints.save, self.trainer, self.assets)
            await self.writer.commit(states={}, closed_groups=[], checkpoint=self._checkpoint(path), metrics=[])
        else:
            await self._in_trainer_thread(self._restore, last)
        if last is not None or self.engine.version != self.trainer.version or self.trainer.policy.is_rounded:
            await push_weights(self.trainer.policy, self.engine, self.trainer.version, self._trainer_thread)
        if last is not None:
            await self._restore_groups()
        if last is not None and last.step:
            await self.probe.check_resumed(self.trainer.version, self.run_folder, last.step)
        self._first_step, self._started = self.trainer.steps, time.monotonic()

    async def _restore_groups(self) -> None:
        """Restore groups, success statistics and metrics of earlier processes. The engine has the restored weights,
        from whose step the statistics age."""
        recovered = await asyncio.to_thread(self.writer.recover)
        interrupted = await asyncio.to_thread(self.writer.interrupted_members)
        known = await asyncio.to_thread(self.run_folder.groups)
        episodes = await asyncio.to_thread(self.run_folder.episodes, TRAIN)
        self.source.statistics.restore(episodes, known)
        if isinstance(self.make_task, Curriculum):
            self.make_task.follow(self.source.statistics, known)
        self.source.groups.restore(recovered, interrupted, lambda result: self.versions.step_of(result.version_min))
        self.source.groups.next_number = max((group.number + 1 for group in known), default=0)
        past = await asyncio.to_thread(self.run_folder.metrics)
        self._past_metrics = [entry for entry in past if entry.get("schema_version") == SCHEMA_VERSION]

    def _restore(self, last: Checkpoint) -> None:
        """Load the last checkpoint. Raises `ConfigError` if it does not match or is damaged."""
        # The run cannot fall back to an older checkpoint: its episodes are marked as trained in later steps.
        try:
            verify(last.path)
        except ConfigError as error:
            older = self.checkpoints.latest_valid_before(last.step)
            source = f" from the last valid checkpoint: --set model={older}" if older else ""
            raise ConfigError(f"{error}; start a new run{source}") from error
        restored = self.checkpoints.load(self.trainer, last.step)
        self.trainer.versions_ahead = last.version - last.step
        newest = self.run_folder.newest_version()
        if segment := self.versions.resume(last.step, last.version, newest):
            self.run_folder.start_segment(segment.step, segment.first)
            rolled_back = {"rolled_back_from": last.version + 1, "rolled_back_to": newest}
            log.warning("weights.renumbered", **rolled_back, next=segment.first)
        self.replay.restore(self.run_folder, last.step, (restored.state if restored else {}).get("replays", {}))

    async def _train(self) -> None:
        await self._evaluate_if_due()
        while self.trainer.steps < self.config.total_steps:
            with self._phases.measure("rollout_wait"):
                groups = await self._batch()
            await self._uninterrupted(self._step(groups))
            await self._evaluate_if_due()

    def _is_due(self, step: int) -> bool:
        every = self.config.eval_every
        is_last = step >= self.config.total_steps
        return self.evaluate is not None and every > 0 and step > 0 and (step % every == 0 or is_last)

    async def _evaluate_if_due(self) -> None:
        """Evaluate the current weights if due; training episodes continue concurrently."""
        step = self.trainer.steps
        if self.evaluate is not None and self._is_due(step):
            with self._phases.measure("evaluation"):
                success = await self.evaluate(self.trainer.version)
            best = await asyncio.to_thread(self.checkpoints.record_eval, step, success)
            log.info("evaluation.finished", step=step, success_rate=round(success, 4), best=best)

    async def _uninterrupted(self, step: Any) -> None:
        """Finish a step even if the loop is canceled; its thread cannot be stopped."""
        work = asyncio.ensure_future(step)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise

    async def _batch(self) -> list[Group]:
        """Wait for the groups of the next step, dropping groups that are entirely stale."""
        groups = self.source.groups
        while True:
            self.source.group_completed.clear()
            stale = [group for group in groups.queued() if not any(self._is_fresh(result) for result in group.scored)]
            for group in stale:
                self._pending_states |= {result.episode_id: ("stale", None) for result in group.scored}
                self._pending_groups.append(group.id)
                self._num_dropped += len(group.scored)
                self._release_images(group.scored)
                self.source.shares.stale[group.task.family] += 1
            if stale:
                groups.remove(stale)
                self.scheduler.wake()
            batch = groups.next_batch(self.config.groups_per_step, self.trainer.steps, self.config.max_staleness)
            if batch is not None:
                return batch
            await self.source.group_completed.wait()

    def _is_fresh(self, result: EpisodeResult) -> bool:
        return result.version_min >= 0 and self._age(result) <= self.config.max_staleness

    def _age(self, result: EpisodeResult) -> int:
        """Return the steps since the oldest weights that sampled an episode.

        Negative if later steps were rolled back.
        """
        return self.trainer.steps - self.versions.step_of(result.version_min)

    async def _step(self, groups: list[Group]) -> None:
        fresh = [result for group in groups for result in group.scored if self._is_fresh(result)]
        stale = [result for group in groups for result in group.scored if not self._is_fresh(result)]
        num_stale, self._num_dropped = self._num_dropped + len(stale), 0
        algorithm = self.trainer.algorithm
        replayed, samples = self.replay.take(self.trainer.steps), groups_to_samples(groups, algorithm, self._is_fresh)
        ages = [abs(self._age(result)) for result in fresh]
        num_rolled_back = sum(self.versions.is_rolled_back(result.version_max) for result in fresh)
        done, sensitivity = await self._in_trainer_thread(self._train_on, samples + replayed)
        self.trainer.versions_ahead = self.versions.offset
        with self._phases.measure("publish"):
            await push_weights(self.trainer.policy, self.engine, self.trainer.version, self._trainer_thread)
        with self._phases.measure("publish_probe"):
            publish_kl = await self.probe.run(self.trainer.version, fresh)
        self.replay.add(groups, fresh)
        self.source.groups.remove(groups)
        self._release_images(result for group in groups for result in group.scored)
        self.source.shares.trained.update(group.task.family for group in groups)
        self.scheduler.wake()
        self._pending_states |= {result.episode_id: ("trained", done.step) for result in fresh}
        self._pending_states |= {result.episode_id: ("stale", None) for result in stale}
        self._pending_groups += [group.id for group in groups]
        report = self._report(
            done.metrics()
            | {
                IMAGE_SENSITIVITY: sensitivity,
                PUBLISH_KL: publish_kl,
                STALE: num_stale / max(1, num_stale + len(fresh)),
                "policy/staleness": float(np.mean(ages)) if ages else 0.0,
                "episodes/resampled_after_resume": num_rolled_back,
                "episodes/replayed": len({sample.episode_id for sample in replayed}),
            }
        )
        self._pending_metrics.append(report.to_dict())
        if not done.step % self.config.save_every or done.step >= self.config.total_steps or self._is_due(done.step):
            await self._commit()
        known = {name: report.metrics.get(f"reward/{key}") for name, key in (("reward", "mean"), ("success_rate",) * 2)}
        log.info("step.finished", step=done.step, **known, loss=done.loss, **await self.writer.check())
        for alert in report.alerts:
            log.warning("health.alert", step=done.step, **alert.to_dict())
        if self.on_step is not None:
            self.on_step(report)
        check_probes(self._past_metrics, self.trainer.steps, self.config.health)

    def _train_on(self, samples: list[TrainingSample]) -> tuple[StepMetrics, float | None]:
        """Train one step in a thread; return its metrics and, if a vision probe is due, the image sensitivity."""
        health, sensitivity = self.config.health, None
        if health.vision_probe_every and self.trainer.steps % health.vision_probe_every == 0:
            with self._phases.measure("vision_probe"):
                sensitivity = image_sensitivity(self.trainer.policy, samples, self.images, health.vision_probe_samples)
        done = self.trainer.step(samples, self.images)
        return_freed_memory()
        return done, sensitivity

    def _release_images(self, results: Iterable[EpisodeResult]) -> None:
        """Drop the pixels of episodes that are not trained any more, which would fill the cache in a long run."""
        if isinstance(self.images, ImageCache):
            self.images.release({name for result in results for name in result.graph.image_hashes})

    async def _commit(self) -> None:
        trained = sorted(name for name, (state, _) in self._pending_states.items() if state == "trained")
        state = {"trained": trained, "replays": self.replay.counts} if self.replay.counts else {"trained": trained}
        with self._phases.measure("checkpoint"):
            path = await self._in_trainer_thread(self.checkpoints.save, self.trainer, self.assets, state)
        states, groups, metrics = self._pending_states, self._pending_groups, self._pending_metrics
        self._pending_states, self._pending_groups, self._pending_metrics = {}, [], []
        point = self._checkpoint(path)
        await self.writer.commit(states=states, closed_groups=groups, checkpoint=point, metrics=metrics)

    def _checkpoint(self, path: Path) -> Checkpoint:
        return Checkpoint(self.trainer.steps, self.trainer.version, path, time.time())

    def _quota_wait_s(self) -> float:
        return self.runner.quota.total_s if self.runner.quota else 0.0

    def _report(self, metrics: dict[str, Any]) -> StepReport:
        since, self.source.since_step = self.source.since_step, StepAccumulator()
        counts, step = self.writer.counts, self.trainer.steps
        elapsed_s = time.monotonic() - self._started
        phases = self._phases.lap()
        known_s = sum(seconds for phase, seconds in phases.items() if phase != "step") + metrics["time/train_step"]
        phases["other"] = phases["step"] - known_s
        metrics = since.metrics() | self.source.shares.metrics() | self.source.statistics.metrics() | metrics
        metrics |= memory_metrics() | self._times.metrics()
        metrics |= {
            "episodes/ended": counts.ended,
            "episodes/errored_frac_total": counts.errored_fraction,
            **{f"episodes/{name}": count for name, count in counts.flat().items()},
            "perf/episodes_per_minute": self.scheduler.episodes_per_minute,
            **{f"time/{phase}": seconds for phase, seconds in phases.items()},
            "time/elapsed": elapsed_s,
            "time/quota_wait": round(self._quota_wait_s(), 1),
        }
        metrics = {name: value for name, value in metrics.items() if value is not None}
        alerts = find_alerts(metrics, self._past_metrics, self.config.health)
        self._past_metrics.append(metrics)
        if self.runner.quota is not None:
            metrics["quota"] = self.runner.quota.snapshot()
        return StepReport(
            step,
            self.config.total_steps,
            self.engine.version,
            eta_s=(self.config.total_steps - step) * elapsed_s / max(1, step - self._first_step),
            metrics=metrics,
            alerts=tuple(alerts),
        )
