"""`TaskSession`: tasks of a config, played one after the other through blocking calls. Used by the environments of
other trainers (`integrations.gymnasium`, `.trl`, `.verifiers`).

Each episode is a `StepwiseEpisode` in a loop of the session's own thread, on a desktop that starts at the first one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from deskhand.agents.episode_context import EpisodeSettings
from deskhand.config.load import load_config
from deskhand.desktop.base import DesktopPoolProtocol, Frame
from deskhand.desktop.factory import open_pool
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.osworld.sync_loop import SyncLoop
from deskhand.recipes.suite import load_suite
from deskhand.rollout.episode import desktop_spec
from deskhand.rollout.reward import load_reward
from deskhand.rollout.stepwise_episode import Action, StepwiseEpisode
from deskhand.tasks.task import Split, Task, seed_for

STARTS = 3
"""Attempts to start an episode before an outage is raised; each one takes another desktop."""


class TaskSession:
    """Tasks of `split` on one desktop. Not thread-safe.

    `config`: a config file, or the name of a shipped one; its sections `suite`, `desktop`, `agent` and `reward`
    are used (None: the defaults); `overrides`: settings as `key.key=value`. Raises `ConfigError`.
    """

    def __init__(self, config: str | Path | None = None, overrides: Sequence[str] = (), split: Split = "train") -> None:
        self.config = load_config(Path(config) if config is not None else None, overrides, os.environ)
        self._split: Split = split
        self._suite = load_suite(self.config.suite, self.config.desktop.backend)
        held_out = self._suite.validation_tasks if split == "validation" else self._suite.eval_tasks
        is_held_out = split != "train" and not self._suite.is_parametric
        self.families = held_out if is_held_out else self._suite.train_tasks
        """Families, or task files."""
        if not self.families:
            raise ConfigError(f"split: the suite has no task in the split {split!r}")
        self.is_parametric = self._suite.is_parametric
        """Whether the variants of a family differ; False for task files."""
        self.settings = EpisodeSettings(self.config.agent)
        self.reward = load_reward(self.config.reward)
        self._loop: SyncLoop | None = None
        self._stack = AsyncExitStack()
        self._pool: DesktopPoolProtocol | None = None
        self._episode: StepwiseEpisode | None = None

    @property
    def episode(self) -> StepwiseEpisode:
        """The last episode. Raises `ConfigError` without one."""
        if self._episode is None:
            raise ConfigError("no episode was started; call reset first")
        return self._episode

    @property
    def is_running(self) -> bool:
        """Whether an episode waits for an action."""
        return self._episode is not None and self._episode.result is None

    def task(self, family: str, variant: int) -> Task:
        """Return a task of the split. Raises `ConfigError` if there is none."""
        if family not in self.families:
            raise ConfigError(f"family: {family} is not one of {', '.join(self.families[:5])}")
        return self._suite.make(family, seed_for(self._split, variant))

    def start(self, task: Task) -> Frame:
        """End the last episode, start one, and return its first screen. Raises `ConfigError`, and after `STARTS`
        attempts `InfrastructureError`; `EvaluatorError` and `CodeError` at once."""
        if self._loop is None:
            self._loop = SyncLoop()
        return self._loop.run(self._start(task))

    async def _start(self, task: Task) -> Frame:
        if self._episode is not None:
            await self._episode.cancel()
            self._episode = None
        if self._pool is None:
            self._pool = await self._stack.enter_async_context(open_pool(self.config.desktop, desktop_spec(task), 1))
        for _ in range(STARTS - 1):
            with suppress(InfrastructureError):
                return await self._new_episode(self._pool, task).start()
        return await self._new_episode(self._pool, task).start()

    def _new_episode(self, pool: DesktopPoolProtocol, task: Task) -> StepwiseEpisode:
        self._episode = StepwiseEpisode(pool, task, self.settings, reward=self.reward)
        return self._episode

    def step(self, action: Action) -> Frame:
        """See `StepwiseEpisode.step`."""
        if self._loop is None or not self.is_running:
            raise ConfigError("step: no episode is running; call reset first")
        return self._loop.run(self.episode.step(action))

    def close(self) -> None:
        """End the episode and stop the desktop. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run(self._close())
            loop.close()

    async def _close(self) -> None:
        if self._episode is not None:
            await self._episode.cancel()
            self._episode = None
        self._pool = None
        await self._stack.aclose()
        self._stack = AsyncExitStack()
