"""`GymnasiumEnv`: Deskhand's tasks on its desktops as a Gymnasium environment.

    env = gymnasium.make("Deskhand-v0", overrides=["suite.families=[terminal_run]"])

The observation is the screenshot, `uint8[height, width, 3]`; `info["instruction"]` is the task. An action is an element
of `actions.action_space()`, a reply in an action format, or an op. The reward is 0 until the end of the episode, and
then the judge's, with milestones. An outage raises, or with `on_outage="truncate"` ends the episode as truncated with
the reward NaN and `info["outage"]`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from deskhand.desktop.base import Frame
from deskhand.errors import AgentError, CodeError, ConfigError, EvaluatorError, InfrastructureError
from deskhand.integrations.gymnasium.actions import CHARACTERS, action_space, op_of
from deskhand.recipes.task_session import TaskSession
from deskhand.rollout.stepwise_episode import Action
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import SPLIT_SIZE, Split

gymnasium: Any = importlib.import_module("gymnasium")
spaces = gymnasium.spaces

MAX_REPLY = 4096
"""Characters of a reply or an instruction in its space."""
_OUTAGES = (InfrastructureError, EvaluatorError, CodeError)


class _AnyText(spaces.Text):
    """Texts of any characters; samples are ASCII."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=CHARACTERS)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class GymnasiumEnv(gymnasium.Env):
    """One task at a time on one desktop, which starts at the first `reset`.

    Args:
        config: A config file, or the name of a shipped one; its sections `suite`, `desktop`, `agent` and `reward` are
            used. None: the defaults.
        overrides: Settings as `key.key=value`.
        split: Split of the tasks that `reset` draws.
        action_format: None for structured actions, or the name of the action format in which an action is a reply.
        observe_instruction: Observe `{"screenshot", "instruction"}` instead of the screenshot alone.
        on_outage: "raise" (`InfrastructureError`, `EvaluatorError`), or "truncate".

    Raises:
        ConfigError: A setting is invalid, or there are no tasks.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 1}  # noqa: RUF012 - as in Gymnasium

    def __init__(
        self,
        config: str | Path | None = None,
        *,
        overrides: Sequence[str] = (),
        split: Split = "train",
        action_format: str | None = None,
        observe_instruction: bool = False,
        on_outage: Literal["raise", "truncate"] = "raise",
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"render_mode: must be 'rgb_array' or None, got {render_mode!r}")
        if on_outage not in ("raise", "truncate"):
            raise ConfigError(f"on_outage: must be 'raise' or 'truncate', got {on_outage!r}")
        chosen = [*overrides, *([f"agent.action_format={action_format}"] if action_format else [])]
        self.render_mode, self._on_outage = render_mode, on_outage
        self._session = TaskSession(config, chosen, split)
        width, height = self._session.settings.shown_size(*self._screen_size())
        screenshot = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self._observes_instruction = observe_instruction
        self.observation_space = (
            spaces.Dict({"screenshot": screenshot, "instruction": _AnyText(MAX_REPLY)})
            if observe_instruction
            else screenshot
        )
        self.action_space = _AnyText(MAX_REPLY) if action_format else action_space()

    def _screen_size(self) -> tuple[int, int]:
        """Return the screen of all tasks. Raises `ConfigError` if they have several, because a space has one."""
        families: dict[tuple[int, int], str] = {}
        for family in self._session.families:
            task = self._session.task(family, 0)
            families.setdefault((task.width, task.height), family)
        if len(families) > 1:
            found = ", ".join(f"{width}x{height} ({family})" for (width, height), family in families.items())
            raise ConfigError(f"suite.families: the tasks have screens of {found}; choose families with one size")
        return next(iter(families))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode. `options`: "family" and "variant" (a number from 0); what is not given is drawn.

        Raises `ConfigError` for unknown options, and for an outage like `step`, after some attempts.
        """
        super().reset(seed=seed)
        given, families = dict(options or {}), self._session.families
        family = given.pop("family", None) or families[int(self.np_random.integers(len(families)))]
        variant = given.pop("variant", None)
        if given:
            raise ConfigError(f"options: must be 'family' and 'variant', got {', '.join(map(repr, given))}")
        if variant is None:
            variant = int(self.np_random.integers(SPLIT_SIZE)) if self._session.is_parametric else 0
        task = self._session.task(family, variant)
        frame = self._session.start(task)
        instruction = self._session.episode.context.instruction
        info = {"instruction": instruction, "task_id": task.id, "family": task.family, "max_steps": task.max_steps}
        return self._observation(frame), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Perform one action. One that is impossible counts as a step; `info["error"]` says why.

        `terminated`: the agent ended the episode, broke its desktop, or made too many errors in a row; `truncated`: it
        has no step left. Raises `ConfigError` without a running episode, and for an outage `InfrastructureError`,
        `EvaluatorError` or `CodeError`.
        """
        try:
            frame = self._session.step(self._action(action))
        except _OUTAGES as error:
            if self._on_outage == "raise":
                raise
            episode = self._session.episode
            outcome = None if episode.result is None else episode.result.outcome
            cause = outcome.cause if isinstance(outcome, Errored) else "infrastructure"
            return self._observation(episode.frame), math.nan, False, True, {"outage": str(error), "cause": cause}
        episode = self._session.episode
        info: dict[str, Any] = {"error": episode.error} if episode.error is not None else {}
        result = episode.result
        if result is None:
            return self._observation(frame), 0.0, False, False, info
        stopped = result.transcript.stop_reason
        assert isinstance(result.outcome, Scored)
        assert result.reward is not None
        info |= {"stop_reason": stopped, "score": result.outcome.value, "success": result.outcome.success}
        is_truncated = stopped == "max_steps"
        return self._observation(frame), float(result.reward), not is_truncated, is_truncated, info

    def _action(self, action: Any) -> Action:
        if not isinstance(action, Mapping):
            return action
        try:
            return op_of(action)
        except AgentError as error:  # an invalid element of the space is the caller's mistake
            raise ConfigError(f"action: {error}") from None

    def _observation(self, frame: Frame) -> Any:
        screenshot = np.array(frame.rgb())
        if not self._observes_instruction:
            return screenshot
        return {"screenshot": screenshot, "instruction": self._session.episode.context.instruction}

    def render(self) -> np.ndarray | None:
        """Return the last screenshot. None without a render mode. Raises `ConfigError` before `reset`."""
        if self.render_mode is None:
            return None
        return np.array(self._session.episode.frame.rgb())

    def close(self) -> None:
        """End the episode and stop the desktop. Idempotent."""
        self._session.close()
