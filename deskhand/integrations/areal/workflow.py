"""Desktop episodes as AReaL rollouts.

AReaL imports `OSWorldWorkflow` by path and creates one per task, so construction is cheap; expensive objects are in
`worker_resources`. One `arun_episode` runs a whole group, each episode on its own desktop, and compares it here:
`rewards` of the trajectory are advantages, and AReaL's own normalization is off. With `advantages: areal` they are
rewards, and AReaL computes advantages. `gconfig.n_samples` is 1. `validate_budget` checks all of this.

Invariant: the result is a trajectory that AReaL trains as it was sampled, or None; an outage is neither an exception
nor a reward of 0.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.algorithms.base import get_algorithm
from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.integrations.areal import installed_areal
from deskhand.integrations.areal.dataset import task_for
from deskhand.integrations.areal.engine import ArealEngine
from deskhand.integrations.areal.settings import WorkflowSettings
from deskhand.integrations.areal.trajectory import check_trajectory
from deskhand.integrations.areal.worker_errors import ErrorLimits
from deskhand.integrations.areal.worker_resources import WorkerResources, worker_resources
from deskhand.integrations.areal.worker_runs import open_worker_run, save_group
from deskhand.recorder.invariants import check_rows
from deskhand.recorder.recorder import Recorder
from deskhand.rollout.episode import errored_result, outcome_of_failure
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest, Group
from deskhand.rollout.runner import RecordedRunner
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import Task

if TYPE_CHECKING:
    from deskhand.trainer.batch import TrainingSample

log = structlog.get_logger()
RunMember = Callable[[EpisodeRequest], Awaitable[EpisodeResult]]
"""Runs one episode; raises only cancellation and `ConfigError`."""

try:
    from areal.api.workflow_api import RolloutWorkflow  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:

    class RolloutWorkflow:  # what AReaL's workers know a workflow by; without AReaL there are none
        pass


class OSWorldWorkflow(RolloutWorkflow):  # pyright: ignore[reportGeneralTypeIssues]
    """Any Deskhand desktop and task under AReaL: `workflow="deskhand.integrations.areal.workflow.OSWorldWorkflow"`.

    Args:
        settings: `WorkflowSettings` as a mapping; overridden by further keywords.
        gconfig: AReaL's `GenerationHyperparameters`; its temperature, `top_p` and `max_new_tokens` are the agent's,
            and its `lora_name` is the adapter that answers if AReaL trains one.
    """

    def __init__(
        self, settings: WorkflowSettings | Mapping[str, Any] | None = None, gconfig: Any = None, **more: Any
    ) -> None:
        self.settings = WorkflowSettings.of(settings, more)
        self.lora_name = str(getattr(gconfig, "lora_name", "") or "")
        if gconfig is not None:
            sampling = {name: getattr(gconfig, name) for name in ("temperature", "top_p", "max_new_tokens")}
            agent = self.settings.agent.model_copy(update=sampling)
            self.settings = self.settings.model_copy(update={"agent": agent})
        self._error_limits = ErrorLimits(self.settings.episode_dir, self.settings.max_errored_groups)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """Run a group on the task of `data`; returns its tensors (`tensors`), or None if there is nothing to train
        on.

        Raises `ConfigError` for invalid settings, data or desktops, which ends the run (`worker_errors`), and
        cancellation.
        """
        with self._error_limits.report_errors():
            return await self._play(engine, data)

    async def _play(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        resources = await worker_resources(self.settings)
        task = task_for(self.settings, data)
        is_eval = (
            installed_areal.is_running()
            and installed_areal.require_areal("infra.workflow_context", "an episode").get().is_eval
        )
        size = 1 if is_eval else self.settings.loop.group_size
        temperature = self.settings.evaluation_temperature if is_eval else self.settings.agent.temperature
        started_at = time.time()
        group, results = await self._run_group(resources, engine, task, size, temperature)
        self._record_statistics(resources, group, results)
        if self.settings.episode_dir is not None and not is_eval:
            await asyncio.to_thread(save_group, self.settings.episode_dir, group, results, started_at)
        if is_eval or self.settings.advantages == "areal":
            return await asyncio.to_thread(self._tensors, resources, group, raw=True)
        if not group.has_signal and (self.settings.zero_variance_groups == "drop" or len(group.scored) < min(2, size)):
            return None
        return await asyncio.to_thread(self._tensors, resources, group)

    def make_agent(self, resources: WorkerResources, temperature: float) -> DesktopAgent:
        """Return the agent of an episode. Override for your own."""
        return resources.agent(temperature)

    async def _run_group(
        self, resources: WorkerResources, engine: Any, task: Task, size: int, temperature: float
    ) -> tuple[Group, list[EpisodeResult]]:
        settings, max_model_len = self.settings, self.settings.engine.max_model_len
        max_retries = size if settings.loop.max_group_retries is None else settings.loop.max_group_retries
        inference = ArealEngine(engine, resources.preprocessing.encoder, max_model_len, self.lora_name)
        recorder = Recorder(
            resources.preprocessing.renderer, inference, resources.preprocessing.images, context_tokens=max_model_len
        )
        frames = None
        if settings.episode_dir is not None:
            frames = open_worker_run(settings.episode_dir, settings.tracking.scrubbed).frames
        runner = RecordedRunner(resources.pool, recorder, self.make_agent(resources, temperature), frames)
        resources.groups += 1
        try:
            return await run_group(
                uuid.uuid4().hex, task, size, runner.run, timeout_s=settings.group_timeout_s, max_retries=max_retries
            )
        finally:
            await runner.close()
            recorder.close()

    def _tensors(self, resources: WorkerResources, group: Group, *, raw: bool = False) -> dict[str, Any] | None:
        """Return the trajectory of the valid scored members. Blocking. `raw`: with rewards instead of advantages."""
        from deskhand.recipes.samples import group_to_samples

        samples = [
            sample
            for sample in group_to_samples(group, get_algorithm(self.settings.algorithm))
            if any(sample.sequence.loss_mask)
        ]
        if raw:
            samples = [replace(sample, advantage=sample.reward) for sample in samples]
        tensors, causes = valid_trajectory(
            samples, resources, normalize_by_episode=self.settings.normalize_by_episode and not raw
        )
        for cause, count in causes.items():
            log.error("areal.invalid_trajectory", group=group.id, cause=cause, episodes=count)
            installed_areal.record(**{f"invalid_{cause}": float(count)})
        return tensors

    def _record_statistics(self, resources: WorkerResources, group: Group, results: Sequence[EpisodeResult]) -> None:
        for result in results:
            values: dict[str, float] = {"num_steps": len(result.transcript.steps)}
            values["errored"] = isinstance(result.outcome, Errored)
            if isinstance(result.outcome, Scored):
                values |= {"reward": result.reward or 0.0, "success": result.success}
            installed_areal.record(**{name: float(value) for name, value in values.items()})
        errors = [result.outcome for result in results if isinstance(result.outcome, Errored)]
        for cause, count in Counter(error.cause for error in errors).items():
            installed_areal.record(**{f"errored_{cause}": float(count)})
        consecutive = self._error_limits.count(errors, is_scored=bool(group.scored))
        installed_areal.record(
            group_scored=float(len(group.scored)),
            group_errored=float(not group.scored),
            group_has_signal=float(group.has_signal),
        )
        if errors:
            causes, first = dict(Counter(error.cause for error in errors)), errors[0].message
            log.warning("areal.group_errored", group=group.id, causes=causes, consecutive=consecutive, first=first)


async def run_group(
    name: str, task: Task, size: int, run_member: RunMember, *, timeout_s: float, max_retries: int = 0
) -> tuple[Group, list[EpisodeResult]]:
    """Run `size` episodes of `task` concurrently; returns the group with its scored members, and all results in member
    order.

    An outage leaves a gap, never a reward; up to `max_retries` new episodes, in total, replace errored ones, but none
    of a task that its start state solves. Episodes beyond the timeout are errored. When this returns, no episode is
    running and every desktop is released. Raises `ConfigError` if a member does; the others are canceled.
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
            except ConfigError:
                raise
            except Exception as error:
                outcome = outcome_of_failure(error)
                result = errored_result(request, outcome.cause, outcome.message)
            finally:
                group.in_flight -= 1
            results.append(result)
            if isinstance(result.outcome, Scored) or group.retries_left == 0:
                return
            if result.outcome.cause == "already_solved":
                return
            group.retries_left -= 1

    members = [asyncio.ensure_future(run_slot()) for _ in range(size)]
    try:
        await asyncio.wait(members, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for member in members:
            member.cancel()
        ends = await asyncio.gather(*members, return_exceptions=True)
    for end in ends:
        if isinstance(end, ConfigError):
            raise end
    results.sort(key=lambda result: result.member)
    group.scored = [result for result in results if isinstance(result.outcome, Scored)]
    group.errored = [result.episode_id for result in results if not isinstance(result.outcome, Scored)]
    group.state = "queued" if group.has_signal else "closed"
    return group, results


def valid_trajectory(
    samples: Sequence[TrainingSample], resources: WorkerResources, *, normalize_by_episode: bool
) -> tuple[dict[str, Any] | None, Counter[str]]:
    """Return the trajectory of the valid episodes (None if there are none) and the number of dropped episodes by
    cause.

    An episode with an invalid row is dropped as a whole.
    """
    tensors, cause = _build_checked(samples, resources, normalize_by_episode)
    causes: Counter[str] = Counter()
    if cause is None:
        return tensors, causes
    valid: list[TrainingSample] = []
    for name in dict.fromkeys(sample.episode_id for sample in samples):
        own = [sample for sample in samples if sample.episode_id == name]
        cause = _build_checked(own, resources, normalize_by_episode)[1]
        if cause is None:
            valid += own
        else:
            causes[cause] += 1
    tensors, cause = _build_checked(valid, resources, normalize_by_episode)
    if cause is not None:  # each is valid alone, but not together
        causes[cause] += len({sample.episode_id for sample in valid})
    return tensors, causes


def _build_checked(
    samples: Sequence[TrainingSample], resources: WorkerResources, normalize_by_episode: bool
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the trajectory of these rows, or why AReaL would not train it as it was sampled."""
    from deskhand.integrations.areal.tensors import samples_to_tensors

    if not samples:
        return None, None
    limits, images = resources.limits, resources.preprocessing.images
    try:
        for name in dict.fromkeys(sample.episode_id for sample in samples):
            own = [sample for sample in samples if sample.episode_id == name]
            check_rows([sample.sequence for sample in own], own[0].graph)
        tensors = samples_to_tensors(
            samples, images, limits.image_id, normalize_by_episode=normalize_by_episode, has_vision=limits.needs_picture
        )
        check_trajectory(tensors, limits)
    except (RecordError, InfrastructureError) as error:
        return None, error.cause if isinstance(error, RecordError) else "infrastructure"
    return tensors, None
