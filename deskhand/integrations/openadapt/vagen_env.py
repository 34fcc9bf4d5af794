"""Asynchronous gym environment of text and images for VAGEN-like trainers (`WAADesktopEnv` of openadapt-evals).

    env = VagenDesktopEnv(desktop, tasks)
    observation, info = await env.reset(seed=0)
    observation, reward, done, info = await env.step("click(x=0.5, y=0.5)")

An invalid reply is an invalid action and does not end the episode; an outage raises.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from PIL import Image

from deskhand.actions import formats
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.ops import TERMINAL_OPS
from deskhand.desktop.base import Frame, StageableDesktop
from deskhand.errors import AgentError, ConfigError, EvaluatorError, InfrastructureError
from deskhand.rollout.episode import desktop_spec
from deskhand.tasks.judge import MilestoneTracker, initial_score, judge
from deskhand.tasks.outcome import Scored, dense_reward
from deskhand.tasks.task import Task

IMAGE_PLACEHOLDER = "<image>"


class VagenDesktopEnv:
    """Episodes of `tasks` on `desktop`; one call at a time. Raises `ConfigError` without tasks.

    `reset(seed)` selects a task by number, modulo their count. The reward is 0 except at the end, where it includes
    milestones.
    """

    def __init__(
        self, desktop: StageableDesktop, tasks: Sequence[Task], *, action_format: str = "openadapt_text"
    ) -> None:
        if not tasks:
            raise ConfigError("VagenDesktopEnv: tasks must not be empty")
        self.desktop, self.tasks = desktop, list(tasks)
        self._format = formats.get(action_format)
        self._task: Task | None = None
        self._milestones: MilestoneTracker | None = None
        self._baseline = 0.0
        self._steps = 0
        self._frame: Frame | None = None
        self._over = True
        self._failed = False
        self._busy = asyncio.Lock()

    async def system_prompt(self) -> str:
        """Return the action format's prompt for the task's screen."""
        return self._format.prompt(self._view(self._task or self.tasks[0]))

    async def reset(self, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return observation and info of a new episode. Raises `InfrastructureError`, and `ConfigError` if the start
        state solves the task."""
        async with self._busy:
            task = self.tasks[seed % len(self.tasks)]
            self._over, self._failed = True, True
            await self.desktop.reset(desktop_spec(task))
            await task.setup(self.desktop)
            self._milestones = MilestoneTracker(task)
            self._baseline = await initial_score(task, self.desktop)
            await self._milestones.after_step(self.desktop)
            self._frame = await self.desktop.observe()
            self._task, self._steps, self._over, self._failed = task, 0, False, False
            return await self._seen(task.instruction), await self._info(True, False)

    async def step(self, action: str) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        """Parse a reply, perform it, observe. Raises `InfrastructureError` and `EvaluatorError`, which end the
        episode."""
        async with self._busy:
            task = self._task
            if task is None or self._over or self._milestones is None:
                raise ConfigError("call reset first")
            self._steps += 1
            valid, ended, said = True, False, ""
            self._over = self._failed = True  # until the step has succeeded
            try:
                ops = self._format.parse(action, self._view(task))
                ended = any(isinstance(op, TERMINAL_OPS) for op in ops)
                self._frame = await self.desktop.perform(
                    ops, action_id=f"{task.id}-{self._steps}-{id(self._milestones)}"
                )
            except AgentError as error:
                valid, said = False, f"error: {error}\n"
            await self._milestones.after_step(self.desktop)
            self._over, self._failed = ended or self._steps >= task.max_steps, False
            reward, success = 0.0, False
            if self._over:
                outcome = await judge(task, self.desktop, milestones=self._milestones, acted_at=time.monotonic())
                if not isinstance(outcome, Scored):
                    self._failed = outcome.cause == "infrastructure"
                    kind = EvaluatorError if outcome.cause == "evaluator" else InfrastructureError
                    raise kind(f"{task.id} has no score: {outcome.message}")
                reward = dense_reward(outcome.value, self._milestones.reached_share, self._baseline)
                success = outcome.success
            return await self._seen(said), reward, self._over, await self._info(valid, success)

    async def health_check(self) -> dict[str, str]:
        """`status`: "not_initialized", "ready", "busy" or "needs_recovery" (then `reset`)."""
        if self._busy.locked():
            return {"status": "busy"}
        if self._failed:
            return {"status": "needs_recovery"}
        if self._task is None:
            return {"status": "not_initialized"}
        try:
            await self.desktop.observe()
        except InfrastructureError as error:
            return {"status": "needs_recovery", "message": str(error)}
        return {"status": "ready"}

    async def close(self) -> None:
        """Idempotent."""
        self._over = True
        await self.desktop.close()

    def _view(self, task: Task) -> ScreenView:
        return ScreenView.of_screen(task.width, task.height)

    async def _seen(self, text: str) -> dict[str, Any]:
        assert self._frame is not None
        picture = Image.fromarray(await asyncio.to_thread(self._frame.rgb))
        shown = {IMAGE_PLACEHOLDER: [picture]}
        return {"obs_str": f"{text}\n{IMAGE_PLACEHOLDER}".lstrip("\n"), "multi_modal_input": shown}

    async def _info(self, valid: bool, success: bool) -> dict[str, Any]:
        assert self._frame is not None
        assert self._task is not None
        assert self._milestones is not None
        return {
            "task_id": self._task.id,
            "screen_size": self._frame.size,
            "state_key": self._frame.content_hash,
            "is_action_valid": valid,
            "success": success,
            "milestones": dict(self._milestones.reached),
        }
