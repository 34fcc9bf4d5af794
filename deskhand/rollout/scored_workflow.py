"""An episode as an agent workflow in AReaL's form: `await workflow.run(row)` returns the reward.

Used by `integrations.areal.agent`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import openai

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.agents.episode_context import Agent
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import CodeError, DeskhandError, EvaluatorError, InfrastructureError
from deskhand.rollout.episode import run_episode
from deskhand.rollout.groups import EpisodeRequest
from deskhand.tasks.judge import AlreadySolvedError
from deskhand.tasks.outcome import Cause, Errored
from deskhand.tasks.task import Task

Lease = Callable[[], AbstractAsyncContextManager[StageableDesktop]]
EPISODE_ERRORS: dict[Cause, type[DeskhandError]] = {
    "infrastructure": InfrastructureError, "evaluator": EvaluatorError, "already_solved": AlreadySolvedError,
    "bug": CodeError,
}  # fmt: skip
"""What is raised for an episode without a score, by its cause; `InfrastructureError` for other causes."""


class ScoredWorkflow:
    """Episode as an agent workflow: `reward = await workflow.run({"family": ..., "seed": ...})`.

    `lease()` returns an async context manager that yields a desktop; `make_task(family, seed)` returns the task.
    """

    def __init__(self, lease: Lease, make_task: Callable[[str, int], Task], agent: Agent | None = None) -> None:
        self.lease = lease
        self.make_task = make_task
        self.agent = agent or DesktopAgent()

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        """Return the reward: in [0, 1], minus the task's format penalty and step cost.

        `extra` may contain `base_url`, `api_key` and `http_client`; the defaults are OPENAI_BASE_URL and
        OPENAI_API_KEY. Raises one of `EPISODE_ERRORS` if the episode errored.
        """
        task = self.make_task(data["family"], int(data["seed"]))
        request = EpisodeRequest(str(data.get("episode_id", task.id)), task)
        async with _client(extra) as client, self.lease() as desktop:
            result = await run_episode(request, desktop, self.agent, client)
        if isinstance(result.outcome, Errored):
            kind = EPISODE_ERRORS.get(result.outcome.cause, InfrastructureError)
            raise kind(f"{task.id}: {result.outcome.message}")
        return float(result.reward or 0.0)


@asynccontextmanager
async def _client(extra: dict[str, Any]) -> AsyncIterator[openai.AsyncOpenAI]:
    client = openai.AsyncOpenAI(
        base_url=extra.get("base_url") or os.environ.get("OPENAI_BASE_URL"),
        api_key=extra.get("api_key") or os.environ.get("OPENAI_API_KEY") or "none",
        http_client=extra.get("http_client"),
        max_retries=0,
    )
    try:
        yield client
    finally:
        if extra.get("http_client") is None:
            await client.close()
