"""Desktop episodes as AReaL rollouts. Invariant: one `arun_episode` is one whole group on desktops of its own; what AReaL gets is a
trajectory that it trains as it was sampled, or None, never an exception for an outage and never a reward of zero for one.

The group is compared here, where all of it is known: `rewards` of the trajectory are advantages. In the configuration of the run
`gconfig.n_samples` is 1 and AReaL's own normalisation of rewards and advantages is off (`areal.plan` checks it).

Constructing a workflow is cheap: AReaL does it for every task. What is expensive is in `areal.place`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.algorithms.registry import ALGORITHMS
from deskhand.errors import InfrastructureError, RecordError
from deskhand.integrations.areal import installed_areal
from deskhand.integrations.areal.dataset import task_for
from deskhand.integrations.areal.engine import ArealEngine
from deskhand.integrations.areal.group_rollout import run_group
from deskhand.integrations.areal.settings import WorkflowSettings
from deskhand.integrations.areal.trajectory import check_trajectory
from deskhand.integrations.areal.worker_resources import WorkerResources, worker_resources
from deskhand.integrations.areal.worker_runs import open_worker_run, save_group
from deskhand.recorder.recorder import Recorder
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import Group
from deskhand.rollout.runner import RecordedRunner
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import Task

if TYPE_CHECKING:
    from deskhand.trainer.batch import TrainingSample

log = structlog.get_logger()

try:
    from areal.api.workflow_api import RolloutWorkflow  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:

    class RolloutWorkflow:  # what AReaL's workers know a workflow by; without AReaL there are none
        pass


class OSWorldWorkflow(RolloutWorkflow):  # pyright: ignore[reportGeneralTypeIssues]
    """Any Deskhand desktop and task under AReaL: `workflow="deskhand.integrations.areal.workflow.OSWorldWorkflow"`.

    `settings`: a mapping as `WorkflowSettings` has it; further keywords go over it. `gconfig`: AReaL's
    `GenerationHyperparameters`, whose temperature, `top_p` and `max_new_tokens` are the agent's.
    """

    def __init__(
        self, settings: WorkflowSettings | Mapping[str, Any] | None = None, gconfig: Any = None, **more: Any
    ) -> None:
        self.settings = WorkflowSettings.of(settings, more)
        if gconfig is not None:
            asked = {"temperature": gconfig.temperature, "top_p": gconfig.top_p, "max_tokens": gconfig.max_new_tokens}
            agent = self.settings.agent.model_copy(update=asked)
            self.settings = self.settings.model_copy(update={"agent": agent})

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """A group of episodes of the task of `data`; its tensors (`areal.tensors`), or None when nothing is left to train on.

        Raises `ConfigError` when the settings or the row of data are wrong, and cancellation.
        """
        place = await worker_resources(self.settings)
        task = task_for(self.settings, data)
        evaluating = (
            installed_areal.is_running()
            and installed_areal.require_areal("infra.workflow_context", "an episode").get().is_eval
        )
        size = 1 if evaluating else self.settings.loop.group_size
        temperature = self.settings.evaluation_temperature if evaluating else self.settings.agent.temperature
        began = time.time()
        group, results = await self._play(place, engine, task, size, temperature)
        self._count(place, group, results)
        if self.settings.episode_dir is not None and not evaluating:
            await asyncio.to_thread(save_group, self.settings.episode_dir, group, results, began)
        if evaluating:
            return await asyncio.to_thread(self._tensors, place, group, raw=True)
        if not group.has_signal and (self.settings.zero_variance_groups == "drop" or len(group.scored) < min(2, size)):
            return None
        return await asyncio.to_thread(self._tensors, place, group)

    def make_agent(self, place: WorkerResources, temperature: float) -> DesktopAgent:
        """What plays an episode."""
        return place.agent(temperature)

    async def _play(
        self, place: WorkerResources, engine: Any, task: Task, size: int, temperature: float
    ) -> tuple[Group, list[EpisodeResult]]:
        settings, room, refills = (
            self.settings,
            self.settings.engine.max_model_len,
            self.settings.loop.max_group_retries,
        )
        inference = ArealEngine(engine, place.reading.pictures, room)
        recorder = Recorder(place.reading.renderer, inference, place.reading.images, context_tokens=room)
        frames = open_worker_run(settings.episode_dir).frames if settings.episode_dir is not None else None
        runner = RecordedRunner(place.pool, recorder, self.make_agent(place, temperature), frames)
        place.groups += 1
        try:
            refills = size if refills is None else refills
            return await run_group(
                uuid.uuid4().hex, task, size, runner.run, timeout_s=settings.group_timeout_s, refills=refills
            )
        finally:
            await runner.close()
            recorder.close()

    def _tensors(self, place: WorkerResources, group: Group, *, raw: bool = False) -> dict[str, Any] | None:
        """The trajectory of a group's scored members without those whose rows are unsound; in a thread. `raw`: with their rewards
        in place of advantages."""
        from deskhand.recipes.samples import group_to_samples

        samples = [
            sample
            for sample in group_to_samples(group, ALGORITHMS[self.settings.algorithm])
            if any(sample.sequence.sampled)
        ]
        if raw:
            samples = [replace(sample, advantage=sample.reward) for sample in samples]
        made, causes = valid_trajectory(samples, place, weigh_episodes=self.settings.normalize_by_episode and not raw)
        for cause, count in causes.items():
            log.error("areal.unsound", group=group.id, cause=cause, episodes=count)
            installed_areal.record(**{f"unsound_{cause}": float(count)})
        return made

    def _count(self, place: WorkerResources, group: Group, results: Sequence[EpisodeResult]) -> None:
        for result in results:
            values = {
                "num_steps": float(len(result.transcript.steps)),
                "unscored": float(isinstance(result.outcome, Errored)),
            }
            if isinstance(result.outcome, Scored):
                values |= {"reward": float(result.reward or 0.0), "success": float(result.success)}
            installed_areal.record(**values)
        lost = Counter(result.outcome.cause for result in results if isinstance(result.outcome, Errored))
        place.outages = 0 if group.scored else place.outages + 1
        installed_areal.record(
            group_scored=float(len(group.scored)),
            group_lost=float(not group.scored),
            group_teaches=float(group.has_signal),
        )
        if lost:
            message = next(result.outcome.message for result in results if isinstance(result.outcome, Errored))
            log.warning("areal.unscored", group=group.id, causes=dict(lost), in_a_row=place.outages, first=message)


def valid_trajectory(
    samples: Sequence[TrainingSample], place: WorkerResources, *, weigh_episodes: bool
) -> tuple[dict[str, Any] | None, Counter[str]]:
    """The trajectory of some episodes, and how many were left out by cause. An episode with an unsound row is left out whole.

    None when nothing is left.
    """
    made, cause = _checked(samples, place, weigh_episodes)
    causes: Counter[str] = Counter()
    if cause is None:
        return made, causes
    sound: list[TrainingSample] = []
    for name in dict.fromkeys(sample.episode_id for sample in samples):
        own = [sample for sample in samples if sample.episode_id == name]
        cause = _checked(own, place, weigh_episodes)[1]
        if cause is None:
            sound += own
        else:
            causes[cause] += 1
    made, cause = _checked(sound, place, weigh_episodes)
    if cause is not None:  # each is sound alone, and all of them are not
        causes[cause] += len({sample.episode_id for sample in sound})
    return made, causes


def _checked(
    samples: Sequence[TrainingSample], place: WorkerResources, weigh_episodes: bool
) -> tuple[dict[str, Any] | None, str | None]:
    """The trajectory of these rows, None of no rows; or why AReaL would not train it as it was sampled."""
    from deskhand.integrations.areal.tensors import samples_to_tensors

    if not samples:
        return None, None
    limits, images = place.limits, place.reading.images
    try:
        made = samples_to_tensors(
            samples, images, limits.image_id, weigh_episodes=weigh_episodes, sees=limits.needs_picture
        )
        check_trajectory(made, limits)
    except (RecordError, InfrastructureError) as error:
        return None, error.cause if isinstance(error, RecordError) else "infrastructure"
    return made, None
