"""`DesktopTaskset` and `DesktopHarness`: Deskhand's tasks and agent for verifiers (its v1 interface).

The taskset lists the tasks of a config. The harness plays one with the config's agent, in this process, on a desktop
of its own; every model call goes through verifiers' endpoint, so its trace has the conversation. The reward is the
judge's, with milestones. verifiers finds both by the name of a module whose `__all__` has them
(`examples/verifiers_desktop.py`).

Invariant: an outage is an error of the trace, which then has no reward.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import openai

from deskhand.agents.build import build_agent
from deskhand.desktop.base import DesktopPoolProtocol
from deskhand.desktop.factory import open_pool
from deskhand.recipes.task_session import TaskSession
from deskhand.rollout.episode import desktop_spec
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.runner import ApiRunner
from deskhand.rollout.stepwise_episode import error_of
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import Split

vf: Any = importlib.import_module("verifiers.v1")


class DesktopTasksetConfig(vf.TasksetConfig):
    """Tasks of `split` with `variants` placements per family; `config` and `overrides` are those of `TaskSession`."""

    config: str | None = None
    overrides: tuple[str, ...] = ()
    split: Split = "train"
    variants: int = 1


class DesktopData(vf.TaskData):
    """One task: its family and variant, and the settings that it is played with."""

    family: str
    variant: int
    split: Split
    config: str | None
    overrides: tuple[str, ...]


class DesktopTask(vf.Task[DesktopData]):
    """A task on a desktop, rewarded by its judge."""

    @property
    def key(self) -> str:
        return f"{self.data.split}/{self.data.family}/{self.data.variant}"

    @vf.reward
    async def judge(self, trace: Any) -> float:
        return trace.info["deskhand"]["reward"]


class DesktopTaskset(vf.Taskset[DesktopTask, DesktopTasksetConfig]):
    """The tasks of a config, family by family in each variant."""

    def load(self) -> Iterator[DesktopTask]:
        config = self.config
        session = _session(config.config, config.overrides, config.split)
        for index in range(config.variants * len(session.families)):
            variant, position = divmod(index, len(session.families))
            family = session.families[position]
            prompt = session.task(family, variant).instruction
            chosen = {"split": config.split, "config": config.config, "overrides": config.overrides}
            data = DesktopData(idx=index, name=family, prompt=prompt, family=family, variant=variant, **chosen)
            yield DesktopTask(data, config.task)


class DesktopHarness(vf.Harness[vf.HarnessConfig]):
    """Plays tasks with the agent of their config. At most `loop.max_concurrent_episodes` desktops run at once."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: DesktopData
    ) -> Any:
        """Play one episode. Raises `InfrastructureError`, `EvaluatorError` or `CodeError` for an outage."""
        session = _session(data.config, data.overrides, data.split)
        task = session.task(data.family, data.variant)
        agent, settings = build_agent(session.config.agent, model=ctx.model)
        async with (
            _desktops(session) as pool,
            openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client,
        ):
            runner = ApiRunner(pool, client, agent, settings=settings)
            runner.reward = session.reward
            result = await runner.run(EpisodeRequest(trace.id, task))
        if isinstance(result.outcome, Errored):
            raise error_of(result.outcome, task)
        score = result.outcome.value if isinstance(result.outcome, Scored) else None
        transcript = {"stop_reason": result.transcript.stop_reason, "num_steps": len(result.steps)}
        trace.info["deskhand"] = {"reward": result.reward, "score": score, **transcript}
        return vf.ProgramResult(0, "", "")


@lru_cache(maxsize=8)
def _session(config: str | None, overrides: tuple[str, ...], split: Split) -> TaskSession:
    return TaskSession(config, overrides, split)


@dataclass
class _Pool:
    """A pool shared by the rollouts of one event loop; the last user closes it."""

    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    opening: asyncio.Future[DesktopPoolProtocol] | None = None
    users: int = 0


_pools: dict[tuple[TaskSession, int], _Pool] = {}


@asynccontextmanager
async def _desktops(session: TaskSession) -> AsyncIterator[DesktopPoolProtocol]:
    key = (session, id(asyncio.get_running_loop()))
    shared = _pools.setdefault(key, _Pool())
    shared.users += 1
    try:
        if shared.opening is None:
            spec = desktop_spec(session.task(session.families[0], 0))
            config = session.config
            opened = open_pool(config.desktop, spec, config.loop.max_concurrent_episodes)
            shared.opening = asyncio.ensure_future(shared.stack.enter_async_context(opened))
        yield await asyncio.shield(shared.opening)
    finally:
        shared.users -= 1
        if not shared.users and _pools.get(key) is shared:
            del _pools[key]
            await shared.stack.aclose()
