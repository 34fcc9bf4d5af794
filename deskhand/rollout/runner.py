"""Runs tickets on leased desktops against a recorder in this process, or against an endpoint elsewhere. Invariant: a lease is
given back and a session is ended whatever happens, and the agent reaches the model only by HTTP requests of the public `openai`
client.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import openai

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop.base import Desktop, DesktopPoolProtocol, Frame
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.server import create_app, in_process_client
from deskhand.rollout.episode import desktop_spec, errored_result, run_episode
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.store.frames import Frames
from deskhand.tasks.task import Task

Script = Callable[[Task, Desktop], AsyncIterator[str]]
"""The replies of a scripted policy for a task on a desktop that is already set up."""
Playing = Callable[[AsyncIterator[str]], AbstractContextManager[None]]


class _Leasing:
    """The part of a runner that has to do with desktops."""

    def __init__(self, pool: DesktopPoolProtocol, agent: DesktopAgent, frames: Frames | None) -> None:
        self.pool, self.agent, self.frames = pool, agent, frames
        self.end_states: Path | None = None
        """A folder for what episodes were judged on; None keeps nothing."""

    @property
    def lot(self) -> QuotaManager | None:
        """Where episodes wait for a quota; None for desktops of this machine."""
        return self.pool.quota

    async def run(self, ticket: EpisodeRequest) -> EpisodeResult:
        """One episode. Raises nothing but `asyncio.CancelledError` (and `ConfigError`, which ends a run)."""
        task = ticket.task
        try:
            lease = await self.pool.lease(desktop_spec(task))
        except InfrastructureError as error:
            return errored_result(ticket, "infrastructure", str(error))
        try:
            return await self._play(ticket, lease.desktop)
        finally:
            await asyncio.shield(self.pool.release(lease))

    async def _play(self, ticket: EpisodeRequest, desktop: Desktop) -> EpisodeResult:
        raise NotImplementedError

    async def _episode(
        self,
        ticket: EpisodeRequest,
        desktop: Desktop,
        client: openai.AsyncOpenAI,
        end_session: Callable[[], CallGraph] = CallGraph,
        seed: int | None = None,
    ) -> EpisodeResult:
        keep = self._keep if self.frames is not None else None
        return await run_episode(
            ticket,
            desktop,
            self.agent,
            client,
            end_session=end_session,
            keep_frame=keep,
            end_states=self.end_states,
            seed=seed,
            longest_s=self.pool.episode_timeout_s,
        )

    async def _keep(self, frame: Frame) -> None:
        if self.frames is not None:
            await asyncio.to_thread(lambda frames: frames.put(frame.sha256, frame.rgb()), self.frames)


class RecordedRunner(_Leasing):
    """`await runner.run(ticket)`: lease, record, run, judge, release. `close` ends the in-process client.

    With `script` and `playing` (`ScriptedEngine.playing`) the policy is a script instead of a model.
    """

    def __init__(
        self,
        pool: DesktopPoolProtocol,
        recorder: Recorder,
        agent: DesktopAgent,
        frames: Frames | None = None,
        *,
        script: Script | None = None,
        playing: Playing | None = None,
    ) -> None:
        super().__init__(pool, agent, frames)
        self.recorder = recorder
        self._script, self._playing = script, playing
        self._http = in_process_client(create_app(recorder, secrets.token_urlsafe(32)))
        self.client = openai.AsyncOpenAI(
            base_url="http://recorder/v1", api_key="set for each episode", http_client=self._http, max_retries=0
        )

    async def _play(self, ticket: EpisodeRequest, desktop: Desktop) -> EpisodeResult:
        client = self.client.with_options(api_key=self.recorder.open_session(ticket.episode_id))
        with self._policy(ticket.task, desktop):
            return await self._episode(
                ticket, desktop, client, lambda: self.recorder.close_session(ticket.episode_id), ticket.seed
            )

    def _policy(self, task: Task, desktop: Desktop) -> AbstractContextManager[None]:
        if self._script is None:
            return nullcontext()
        if self._playing is None:
            raise ConfigError("a scripted policy needs the scripted engine's `playing`")
        return self._playing(self._script(task, desktop))

    async def close(self) -> None:
        """Idempotent."""
        await self._http.aclose()


class ApiRunner(_Leasing):
    """As `Runner`, but the agent asks `client` itself: a model of which nothing but its replies is known.

    Episodes have a transcript and no call graph, so they can be judged and looked at, not trained on. The endpoint is not told what
    to draw by: not every one takes seeds.
    """

    def __init__(
        self, pool: DesktopPoolProtocol, client: openai.AsyncOpenAI, agent: DesktopAgent, frames: Frames | None = None
    ) -> None:
        super().__init__(pool, agent, frames)
        self.client = client

    async def _play(self, ticket: EpisodeRequest, desktop: Desktop) -> EpisodeResult:
        return await self._episode(ticket, desktop, self.client)

    async def close(self) -> None:
        """Idempotent."""
        await self.client.close()
