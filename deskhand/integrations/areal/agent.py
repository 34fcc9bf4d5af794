"""Desktop episodes as plain AReaL agents: classes with `async def run(data, **extra) -> float`.

Named by `deskhand.workflow_class`, or used without AReaL. `extra` may hold `base_url`, `api_key` and `http_client`
(AReaL's inline mode); otherwise OPENAI_BASE_URL and OPENAI_API_KEY name the model. Agents hold settings only, so they
can be pickled; desktops and connections are in `worker_resources`.

AReaL 1.0.4 accepts images through its proxy but trains rows without them. Through the proxy, train with
`agent.observation: a11y_tree`; with screenshots, use `OSWorldWorkflow`.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop.base import StageableDesktop
from deskhand.integrations.areal import installed_areal
from deskhand.integrations.areal.dataset import task_for
from deskhand.integrations.areal.http_clients import httpx_client
from deskhand.integrations.areal.settings import Desktops, WorkflowSettings
from deskhand.integrations.areal.worker_errors import ErrorLimits
from deskhand.integrations.areal.worker_resources import WorkerResources, use_worker_resources
from deskhand.rollout.episode import desktop_spec
from deskhand.rollout.scored_workflow import ScoredWorkflow
from deskhand.tasks.task import Task

DEFAULT_SERVER_URL = "http://localhost:5000"
"""OpenAdapt's default for rows without `server_url`."""


class OSWorldAgent:
    """Runs one episode of a row's task and returns its reward. `more` overrides `settings` (`WorkflowSettings`)."""

    defaults: ClassVar[dict[str, Any]] = {}
    """Defaults of the `agent` settings."""

    def __init__(self, settings: WorkflowSettings | Mapping[str, Any] | None = None, **more: Any) -> None:
        if not isinstance(settings, WorkflowSettings):
            merged = {**(settings or {}), **more}
            settings, more = {**merged, "agent": {**self.defaults, **merged.get("agent", {})}}, {}
        self.settings = WorkflowSettings.of(settings, more)

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        """Return the reward of one episode.

        Raises one of `EPISODE_ERRORS` if it has no score, and AReaL then draws another task; many of them in a row
        (`max_errored_groups` x `loop.group_size`), a few `CodeError`, or anything else end a run of AReaL
        (`worker_errors`).
        """
        num_errored = self.settings.max_errored_groups * self.settings.loop.group_size
        limits = ErrorLimits(self.settings.episode_dir, num_errored, "episodes")
        with limits.report_errors():
            reward = await self._play(data, extra)
        limits.count([], is_scored=True)
        return reward

    async def _play(self, data: dict[str, Any], extra: dict[str, Any]) -> float:
        task = task_for(self.settings, data)
        async with use_worker_resources(self.settings, keep=installed_areal.is_running_episode()) as resources:
            extra["http_client"] = extra.get("http_client") or await httpx_client()
            workflow = ScoredWorkflow(
                lambda: _lease(resources, task), lambda family, seed: task, self.make_agent(resources)
            )
            episode = {"family": task.family, "seed": task.seed, "episode_id": str(data.get("episode_id", task.id))}
            return await workflow.run(episode, **extra)

    def make_agent(self, resources: WorkerResources) -> DesktopAgent:
        """Return the agent of an episode. Override for your own."""
        return resources.agent(self.settings.agent.temperature)


class WAADesktopWorkflow(OSWorldAgent):
    """`OSWorldAgent` with the action format of Windows Agent Arena's navigator as default.

    Takes the arguments and rows of OpenAdapt's class of this name: `max_tokens` and `temperature` are the agent's.
    Without `desktops`, an episode runs on the machine of the row's `server_url` (default: port 5000 of this machine),
    which this process leases to one episode at a time.
    """

    defaults: ClassVar[dict[str, Any]] = {"action_format": "waa_navi", "prompt_style": "full", "max_new_tokens": 1024}

    def __init__(
        self,
        settings: WorkflowSettings | Mapping[str, Any] | None = None,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        **more: Any,
    ) -> None:
        self._uses_row_machine = not isinstance(settings, WorkflowSettings) and not {**(settings or {}), **more}.get(
            "desktops"
        )
        if self._uses_row_machine:
            more["desktops"] = _machine(DEFAULT_SERVER_URL)
        super().__init__(settings, **more)
        given = {"max_new_tokens": max_tokens, "temperature": temperature}
        agent = self.settings.agent.model_copy(update={key: each for key, each in given.items() if each is not None})
        self.settings = self.settings.model_copy(update={"agent": agent})

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        if not self._uses_row_machine or not data.get("server_url"):
            return await super().run(data, **extra)
        other = copy.copy(self)
        desktops = Desktops.model_validate(_machine(str(data["server_url"])))
        other.settings, other._uses_row_machine = self.settings.model_copy(update={"desktops": desktops}), False
        return await other.run(data, **extra)


def _machine(url: str) -> dict[str, Any]:
    return {"settings": {"backend": "waa", "urls": [url]}}


@asynccontextmanager
async def _lease(resources: WorkerResources, task: Task) -> AsyncIterator[StageableDesktop]:
    lease = await resources.pool.lease(desktop_spec(task))
    try:
        yield lease.desktop
    finally:
        await resources.pool.release(lease)
