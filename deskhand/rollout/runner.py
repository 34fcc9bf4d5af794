"""Runners: lease a desktop, run one episode on it, release it.

`RecordedRunner` serves the model through an in-process recorder (training and evaluation), `ApiRunner` uses a remote
endpoint (evaluation only). Used by `rollout.scheduler` through `run`.

Invariant: the lease is released and the recorder session is closed on every path.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import openai

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.agents.episode_context import Agent, EpisodeSettings
from deskhand.desktop.base import DesktopPoolProtocol, Frame, StageableDesktop
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.engines.takeover import TakeoverEngine
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.images import IMAGE, ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.server import create_app, in_process_client
from deskhand.rollout.episode import desktop_spec, errored_result, run_episode, settings_of
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.live_episode import LiveEpisode, WatchedPool
from deskhand.rollout.reward import RewardFunction, apply_reward
from deskhand.store.frames import Frames
from deskhand.tasks.task import Task

Script = Callable[[Task, StageableDesktop], AsyncIterator[str]]
"""Returns the replies of a scripted policy for a task that is already set up."""
Playing = Callable[[AsyncIterator[str]], AbstractContextManager[None]]


class _LeasingRunner:
    def __init__(
        self, pool: DesktopPoolProtocol, agent: Agent, frames: Frames | None, settings: EpisodeSettings | None
    ) -> None:
        self.pool, self.agent, self.frames, self.settings = pool, agent, frames, settings
        self.reward: RewardFunction | None = None
        """Replaces the judge's reward; None keeps it."""
        self.end_states: Path | None = None
        """Folder for judged end states; None saves none."""

    @property
    def num_judging(self) -> int:
        """Desktops for episodes that are only being judged, beyond those of the concurrent episodes."""
        return self.pool.num_judging if isinstance(self.pool, WatchedPool) else 0

    @property
    def quota(self) -> QuotaManager | None:
        """Quota manager of remote desktops; None for local ones."""
        return self.pool.quota

    async def run(self, request: EpisodeRequest) -> EpisodeResult:
        """Run one episode. Raises only `asyncio.CancelledError` and `ConfigError`, which ends the run."""
        if not isinstance(self.pool, WatchedPool):
            return await self._run_leased(request, None)
        live, result = self.pool.watch(request), None
        try:
            result = await self.pool.without_help(live, await self._run_leased(request, live))
            return result
        except InfrastructureError as error:  # the demonstration cannot be stored
            return errored_result(request, "infrastructure", str(error))
        finally:
            self.pool.ended(live, result)

    async def _run_leased(self, request: EpisodeRequest, live: LiveEpisode | None) -> EpisodeResult:
        try:
            lease = await self.pool.lease(desktop_spec(request.task))
        except InfrastructureError as error:
            return errored_result(request, "infrastructure", str(error))
        try:
            return await self._run_on(request, lease.desktop, live)
        finally:
            await asyncio.shield(self.pool.release(lease))

    async def _run_on(
        self, request: EpisodeRequest, desktop: StageableDesktop, live: LiveEpisode | None
    ) -> EpisodeResult:
        raise NotImplementedError

    async def _episode(
        self,
        request: EpisodeRequest,
        desktop: StageableDesktop,
        client: openai.AsyncOpenAI,
        live: LiveEpisode | None,
        close_session: Callable[[], CallGraph] = CallGraph,
        seed: int | None = None,
    ) -> EpisodeResult:
        result = await run_episode(
            request,
            desktop,
            self.agent,
            client,
            self.settings,
            close_session=close_session,
            on_frame=self._save_frame if self.frames is not None else None,
            end_state_dir=self.end_states,
            seed=seed,
            timeout_s=self.pool.episode_timeout_s,
            live=live,
        )
        return await apply_reward(self.reward, result)

    async def _save_frame(self, frame: Frame) -> None:
        if self.frames is not None:
            await asyncio.to_thread(lambda frames: frames.put(frame.sha256, frame.rgb()), self.frames)


class RecordedRunner(_LeasingRunner):
    """Runner whose model calls are recorded; results carry a call graph and can be trained on.

    With `script` and `playing` (`ScriptedEngine.playing`) the policy is a script instead of a model.
    """

    def __init__(
        self,
        pool: DesktopPoolProtocol,
        recorder: Recorder,
        agent: Agent,
        frames: Frames | None = None,
        *,
        settings: EpisodeSettings | None = None,
        script: Script | None = None,
        playing: Playing | None = None,
    ) -> None:
        settings = replace(settings or settings_of(agent), image_url=self._name_image)
        super().__init__(pool, agent, frames, settings)
        self.recorder = recorder
        self._script, self._playing = script, playing
        app = create_app(recorder, secrets.token_urlsafe(32), accepts_names=True)
        self._http = in_process_client(app)
        self.client = openai.AsyncOpenAI(
            base_url="http://recorder/v1", api_key="set for each episode", http_client=self._http, max_retries=0
        )

    async def _run_on(
        self, request: EpisodeRequest, desktop: StageableDesktop, live: LiveEpisode | None
    ) -> EpisodeResult:
        client = self.client.with_options(api_key=self.recorder.open_session(request.episode_id))
        with self._policy(request.task, desktop), self._takeover(live):
            return await self._episode(
                request, desktop, client, live, lambda: self.recorder.close_session(request.episode_id), request.seed
            )

    def _takeover(self, live: LiveEpisode | None) -> AbstractContextManager[None]:
        engine = self.recorder.engine
        if live is None or not isinstance(engine, TakeoverEngine) or not isinstance(self.agent, DesktopAgent):
            return nullcontext()
        live.action_format = self.agent.action_format
        return engine.answered_by(live)

    async def _name_image(self, frame: Frame) -> str:
        """Give a screen to the recorder; return its name, which replaces a data URI."""
        images = self.recorder.images
        assert isinstance(images, ImageCache)  # checked by create_app
        await self.recorder.in_thread(lambda: images.add_pixels(frame.sha256, frame.rgb(), frame.png))
        return IMAGE + frame.sha256

    def _policy(self, task: Task, desktop: StageableDesktop) -> AbstractContextManager[None]:
        if self._script is None:
            return nullcontext()
        if self._playing is None:
            raise ConfigError("script: needs `playing` of the scripted engine")
        return self._playing(self._script(task, desktop))

    async def close(self) -> None:
        """Close the in-process client. Idempotent."""
        await self._http.aclose()


class ApiRunner(_LeasingRunner):
    """Runner whose agent calls an OpenAI-compatible endpoint directly.

    Results have no call graph, so they can be scored but not trained on. No sampling seed is sent, since not every
    endpoint accepts one.
    """

    def __init__(
        self,
        pool: DesktopPoolProtocol,
        client: openai.AsyncOpenAI,
        agent: Agent,
        frames: Frames | None = None,
        *,
        settings: EpisodeSettings | None = None,
    ) -> None:
        super().__init__(pool, agent, frames, settings)
        self.client = client

    async def _run_on(
        self, request: EpisodeRequest, desktop: StageableDesktop, live: LiveEpisode | None
    ) -> EpisodeResult:
        return await self._episode(request, desktop, self.client, live)

    async def close(self) -> None:
        """Close the client. Idempotent."""
        await self.client.close()
