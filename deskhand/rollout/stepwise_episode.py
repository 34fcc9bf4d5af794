"""`StepwiseEpisode`: one episode whose actions a caller gives one by one. Used by integrations of environments.

It is `rollout.episode.run_episode` with an agent that waits for the caller, so reset, limits, judge, reward and outages
are those of training.

Invariant: an outage raises, or is the `Errored` of `result`; it never has a reward.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress

import openai

from deskhand.actions import formats
from deskhand.actions.formats.base import ActionFormat
from deskhand.actions.ops import Op
from deskhand.agents.episode_context import EpisodeContext, EpisodeSettings
from deskhand.desktop.base import DesktopPoolProtocol, Frame
from deskhand.errors import AgentError, CodeError, ConfigError, DeskhandError, EvaluatorError, InfrastructureError
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.reward import RewardFunction
from deskhand.rollout.runner import ApiRunner
from deskhand.tasks.outcome import Errored
from deskhand.tasks.task import Task

Action = Op | Sequence[Op] | str
"""Ops of one step, or a reply in the action format."""


class StepwiseEpisode:
    """One episode of `task` on a desktop of `pool`, which is leased by `start` and released at the end.

    `settings` has the action format of replies and the size of screenshots. Use it in one event loop.
    """

    def __init__(
        self,
        pool: DesktopPoolProtocol,
        task: Task,
        settings: EpisodeSettings | None = None,
        *,
        reward: RewardFunction | None = None,
    ) -> None:
        self.task, self.settings = task, settings or EpisodeSettings()
        self.error: str | None = None
        """Why nothing of the last action was performed; None if it was."""
        self.result: EpisodeResult | None = None
        """Set at the end."""
        self._format: ActionFormat = formats.get(self.settings.config.action_format)
        self._client = openai.AsyncOpenAI(base_url="http://no-model.invalid", api_key="none", max_retries=0)
        self._runner = ApiRunner(pool, self._client, self, settings=self.settings)
        self._runner.reward = reward
        self._actions: asyncio.Queue[Action] = asyncio.Queue()
        self._turns: asyncio.Queue[None] = asyncio.Queue()
        self._playing: asyncio.Task[EpisodeResult] | None = None
        self._context: EpisodeContext | None = None

    @property
    def context(self) -> EpisodeContext:
        """The episode as an agent sees it. Raises `ConfigError` before `start`."""
        if self._context is None:
            raise ConfigError("the episode has not started; call start first")
        return self._context

    @property
    def frame(self) -> Frame:
        """The last screen, in the size in which a model is shown it."""
        return self.context.frame

    async def start(self) -> Frame:
        """Reset the desktop, set the task up and return the first screen.

        Raises `ConfigError` if a person must change something, and like `step` for an outage.
        """
        self._playing = asyncio.create_task(self._runner.run(EpisodeRequest(uuid.uuid4().hex, self.task)))
        await self._next_turn()
        return self.frame

    async def step(self, action: Action) -> Frame:
        """Perform one step and return the screen that followed; after the last one the episode is judged.

        An action that cannot be parsed or performed counts as a step, and `error` says why.

        Raises:
            ConfigError: The episode is not running.
            InfrastructureError, EvaluatorError, CodeError: It has ended without a score; `result` has the cause.
        """
        if self._playing is None or self.result is not None:
            raise ConfigError("the episode is not running; start a new one")
        self._actions.put_nowait(action)
        await self._next_turn()
        return self.frame

    async def run(self, episode: EpisodeContext) -> None:
        """See `agents.episode_context.Agent`: this object is the agent of its episode."""
        await episode.observe()
        self._context = episode
        while not episode.done:
            self._turns.put_nowait(None)
            action = await self._actions.get()
            text, self.error = action if isinstance(action, str) else "", None
            try:
                await episode.act(self._ops(action, episode), reply=text)
            except AgentError as error:
                self.error = str(error)
                episode.reject(text, error)

    def _ops(self, action: Action, episode: EpisodeContext) -> list[Op]:
        if isinstance(action, str):
            return self._format.parse(action, episode.view)
        return list(action) if isinstance(action, Sequence) else [action]

    async def _next_turn(self) -> None:
        """Wait until the agent waits for an action, or the episode has ended."""
        assert self._playing is not None
        turn = asyncio.create_task(self._turns.get())
        try:
            await asyncio.wait({turn, self._playing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            turn.cancel()
        if not self._playing.done():
            return
        await self._runner.close()
        self.result = self._playing.result()
        if isinstance(self.result.outcome, Errored):
            raise error_of(self.result.outcome, self.task)

    async def cancel(self) -> None:
        """End the episode without a result, and release its desktop. Idempotent."""
        if self._playing is not None and not self._playing.done():
            self._playing.cancel()
            with suppress(asyncio.CancelledError, DeskhandError):
                await self._playing
        await self._runner.close()


def error_of(outcome: Errored, task: Task) -> DeskhandError:
    """Return the exception for an episode without a score."""
    kinds = {"evaluator": EvaluatorError, "bug": CodeError, "already_solved": ConfigError}
    return kinds.get(outcome.cause, InfrastructureError)(f"{task.id}: {outcome.message}")
