"""A running episode that people may watch and take over, and the pool that registers episodes: `WatchedPool`.

`recipes.assemble` wraps the pool of a run; `rollout.runner` registers each episode, and `rollout.episode` notes its
phase. While a person has taken over, the person's actions are the replies to the agent's model calls: the agent waits
for them, parses and performs them, and the recorder records them as it records those of a model. Limits of time pause.

Invariant: an episode with a person's reply is never trained by RL and never counts in an evaluation: it ends as
`Errored("taken_over")`, and what was scored is stored as a demonstration, from which `deskhand sft` learns the person's
replies alone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deskhand import pausable_timeout
from deskhand.actions.formats.base import ActionFormat
from deskhand.actions.ops import Op
from deskhand.agents.episode_context import EpisodeContext
from deskhand.desktop.base import DesktopPoolProtocol, DesktopSpec, HasLivePixels, Lease, StageableDesktop
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.engines.takeover import Encode
from deskhand.rollout.episode_record import EpisodeResult, to_record
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.run_writer import new_row, row_of
from deskhand.server.http_errors import HttpError
from deskhand.server.live_desktops import LiveDesktop, LiveDesktops
from deskhand.store.run import DEMONSTRATIONS, Run
from deskhand.tasks.outcome import Errored, Scored

_POLL_S = 0.5
"""Interval at which a waiting agent notices that the takeover has ended."""
_MAX_TEXT = 500
STATES = {"reset": "starting", "setup": "starting", "judge": "being judged"}
"""What the wall shows for the phases of an episode; in the others the agent is at work."""


@dataclass
class _Call:
    """A model call that waits for the person's reply."""

    encode: Encode
    token_ids: asyncio.Future[tuple[int, ...]]


class LiveEpisode(LiveDesktop):
    """One running episode. `human_only`: no model answers, so the agent waits until a person takes over."""

    def __init__(self, request: EpisodeRequest, *, human_only: bool = False) -> None:
        super().__init__(request.episode_id)
        self.request, self.human_only = request, human_only
        self.phase = ""
        """Phase of `rollout.episode`; empty while the episode waits for a desktop."""
        self.desktop: StageableDesktop | None = None
        self.context: EpisodeContext | None = None
        """Set when the agent starts."""
        self.action_format: ActionFormat | None = None
        """Format in which a person's actions are replies; None if the calls do not pass through the recorder, or the
        agent is not Deskhand's."""
        self.num_human_replies = 0
        self._call: _Call | None = None
        self._started = time.time()

    def facts(self) -> dict[str, Any]:
        task, context = self.request.task, self.context
        last = context.steps[-1] if context is not None and context.steps else None
        return {
            "episode": self.request.episode_id,
            "task": task.id,
            "family": task.family,
            "group": self.request.group_id,
            "instruction": task.instruction if context is None else context.instruction,
            "state": self.state,
            "step": 0 if context is None else len(context.steps),
            "max_steps": task.max_steps,
            "seconds": time.time() - self._started,
            "reply": "" if last is None else last.text[:_MAX_TEXT],
            "error": "" if last is None else (last.error or "")[:_MAX_TEXT],
            "human_only": self.human_only,
            "waits_for_action": self._call is not None and not self._call.token_ids.done(),
        }

    @property
    def state(self) -> str:
        if not self.phase:
            return "waiting for a desktop"
        if self.phase != "solve":
            return STATES.get(self.phase, self.phase)
        if self._call is not None:
            return "waiting for a person"
        acting = self.context is not None and getattr(self.context.desktop, "acting", False)
        return "acting" if acting else "waiting for the model"

    def size(self) -> tuple[int, int]:
        screen = None if self.context is None else self.context.last_screen
        return screen.size if screen is not None else (self.request.task.width, self.request.task.height)

    def pixels(self, step: int = 1) -> np.ndarray | None:
        """See `LiveDesktop`. A person who has taken over sees what the model would see."""
        screen = None if self.context is None else self.context.last_screen
        if self._call is None and isinstance(self.desktop, HasLivePixels):
            live = self.desktop.live_pixels(step)
            if live is not None:
                return live
        return None if screen is None else screen.bgrx[::step, ::step]

    def refusal(self) -> str:
        if self.context is None or self.phase != "solve" or self.context.done:
            return "no agent is at work on this desktop now; wait for its first step, or for the next episode"
        if self.action_format is None:
            return "the replies of this agent are not recorded in an action format, so a person cannot write them"
        return ""

    async def reply(self, encode: Encode) -> tuple[int, ...] | None:
        """See `engines.takeover.ReplySource`."""
        if not (self.is_held or self.human_only):
            return None
        call = self._call = _Call(encode, asyncio.get_running_loop().create_future())
        try:
            with pausable_timeout.pause_timeouts(measured=False):
                while self.is_held or self.human_only:
                    await asyncio.wait({call.token_ids}, timeout=_POLL_S)
                    if call.token_ids.done():
                        self.num_human_replies += 1
                        return call.token_ids.result()
            return None
        finally:
            self._call = None

    async def perform(self, op: Op) -> None:
        call, context = self._call, self.context
        if call is None or call.token_ids.done() or context is None or self.action_format is None:
            raise HttpError(409, "the agent is still at its last step; wait for the next screenshot")
        call.token_ids.set_result(call.encode(self.action_format.emit([op], context.view)))

    def result_facts(self, result: EpisodeResult | None) -> dict[str, Any] | None:
        """Return what stays on the wall when the episode has ended."""
        if result is None:
            return None
        errored = result.outcome.cause if isinstance(result.outcome, Errored) else ""
        reward = result.reward if result.reward is not None and math.isfinite(result.reward) else None
        return {"episode": result.episode_id, "task": result.task_id, "reward": reward, "errored": errored}


class WatchedPool:
    """A pool of desktops whose episodes are shown by `desktops`. `run` keeps demonstrations; `num_judging` desktops are
    for episodes that are only being judged."""

    def __init__(
        self,
        pool: DesktopPoolProtocol,
        desktops: LiveDesktops,
        run: Run,
        *,
        human_only: bool = False,
        num_judging: int = 0,
    ) -> None:
        self.pool, self.desktops, self.run, self.human_only = pool, desktops, run, human_only
        self.num_judging = num_judging
        self.on_demonstration: Callable[[EpisodeResult], None] | None = None
        """Receives each demonstration, stored."""

    @property
    def quota(self) -> QuotaManager | None:
        return self.pool.quota

    @property
    def episode_timeout_s(self) -> float | None:
        return self.pool.episode_timeout_s

    async def lease(self, spec: DesktopSpec | None = None) -> Lease:
        return await self.pool.lease(spec)

    async def release(self, lease: Lease) -> None:
        await self.pool.release(lease)

    async def close(self) -> None:
        await self.pool.close()

    def watch(self, request: EpisodeRequest) -> LiveEpisode:
        """Show an episode until `ended`."""
        live = LiveEpisode(request, human_only=self.human_only)
        self.desktops.add(live)
        return live

    def ended(self, live: LiveEpisode, result: EpisodeResult | None) -> None:
        """Free the place of an episode."""
        self.desktops.remove(live, live.result_facts(result))

    async def without_help(self, live: LiveEpisode, result: EpisodeResult) -> EpisodeResult:
        """Return the result of an episode as its run may count it, and store it as a demonstration if a person helped.

        Raises `InfrastructureError` if the demonstration cannot be stored.
        """
        if not live.num_human_replies or not isinstance(result.outcome, Scored):
            return result
        name = f"{result.episode_id}-demonstration"
        demonstration = replace(result, episode_id=name, group_id=None, member=0)
        request = replace(live.request, episode_id=name, group_id=None, member=0)
        await asyncio.to_thread(self._store, request, demonstration)
        if self.on_demonstration is not None:
            self.on_demonstration(demonstration)
        message = f"a person wrote {live.num_human_replies} replies; stored as the demonstration {name}"
        return replace(result, outcome=Errored("taken_over", message), reward=None, first_click_on_target=None)

    def _store(self, request: EpisodeRequest, result: EpisodeResult) -> None:
        record, tensors = to_record(result)
        self.run.start_episode(new_row(request, DEMONSTRATIONS))
        self.run.finish_episode(row_of(result, DEMONSTRATIONS, "scored"), record, tensors)
