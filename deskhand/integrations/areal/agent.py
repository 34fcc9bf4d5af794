"""Desktop episodes as plain agent workflows: classes with `async def run(data, **extra) -> float`. Invariant: an episode without a
score raises; it never returns a number.

They need nothing of AReaL: `extra` may hold `base_url`, `api_key` and `http_client`, as AReaL's proxy gives them (inline mode);
otherwise OPENAI_BASE_URL and OPENAI_API_KEY say where the model is (its subproc mode, and any other endpoint). They hold settings
alone, so they can be pickled and made anew for every task; desktops and connections belong to the process (`areal.place`).

AReaL 1.0.4 takes pictures through its proxy and trains rows without them: through the proxy, train with `agent.observation: a11y_tree`, and
on pictures with `areal.workflow.OSWorldWorkflow`. For evaluation and for recording by other endpoints pictures are fine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop.base import Desktop
from deskhand.integrations.areal import installed_areal
from deskhand.integrations.areal.dataset import task_for
from deskhand.integrations.areal.http_clients import httpx_client
from deskhand.integrations.areal.settings import WorkflowSettings
from deskhand.integrations.areal.worker_resources import WorkerResources, use_worker_resources
from deskhand.rollout.episode import ScoredWorkflow, desktop_spec
from deskhand.tasks.task import Task


class OSWorldAgent:
    """One episode of the task of a row of data; the reward is that of the outcome, with dense milestones where the task has some.

    `settings` as of `WorkflowSettings`; further keywords go over it.
    """

    defaults: ClassVar[dict[str, Any]] = {}
    """Of the agent's settings, for what the settings leave out."""

    def __init__(self, settings: WorkflowSettings | Mapping[str, Any] | None = None, **more: Any) -> None:
        if not isinstance(settings, WorkflowSettings):
            told = {**(settings or {}), **more}
            settings, more = {**told, "agent": {**self.defaults, **told.get("agent", {})}}, {}
        self.settings = WorkflowSettings.of(settings, more)

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        """The reward of one episode. Raises `InfrastructureError` or `EvaluatorError` when it has no score, and `ConfigError`."""
        task = task_for(self.settings, data)
        async with use_worker_resources(self.settings, keep=installed_areal.is_supported_version()) as place:
            extra["http_client"] = extra.get("http_client") or await httpx_client()
            workflow = ScoredWorkflow(lambda: _leased(place, task), lambda family, seed: task, self.make_agent(place))
            episode = {"family": task.family, "seed": task.seed, "episode_id": str(data.get("episode_id", task.id))}
            return await workflow.run(episode, **extra)

    def make_agent(self, place: WorkerResources) -> DesktopAgent:
        """What plays the episode."""
        return place.agent(self.settings.agent.temperature)


class WAADesktopWorkflow(OSWorldAgent):
    """As `OSWorldAgent`, for agents of Windows Agent Arena, which answer in its navigator's form unless told otherwise."""

    defaults: ClassVar[dict[str, Any]] = {"dialect": "waa_navi", "style": "full", "max_tokens": 1024}


@asynccontextmanager
async def _leased(place: WorkerResources, task: Task) -> AsyncIterator[Desktop]:
    lease = await place.pool.lease(desktop_spec(task))
    try:
        yield lease.desktop
    finally:
        await place.pool.release(lease)
