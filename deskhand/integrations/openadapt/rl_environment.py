"""A desktop task as an environment with reset, step, observe and evaluate, with OpenAdapt's method names.

    with RLEnvironment(lambda task_id: make_task("file_rename", int(task_id))) as env:
        observation = env.reset(ResetConfig(task_id="7"))
        steps = env.collect_rollout(lambda observation: policy(observation.png()), max_steps=15)
        print(steps[-1].reward, env.outcome())

An action is an op, a list of ops, or a reply in the environment's action format (text, or the object of a JSON
format). Unlike OpenAdapt, `reset` alone sets the task up, an invalid reply raises `AgentError` without ending the
episode, and `done` means that the agent ended or has no step left. An outage is never scored 0.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deskhand.actions.formats import openadapt_json
from deskhand.actions.formats.base import ActionFormat, ScreenView
from deskhand.actions.ops import TERMINAL_OPS, Answer, Done, Fail, Op
from deskhand.desktop.base import Frame
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError
from deskhand.integrations.openadapt.stuck import StuckDetector
from deskhand.osworld.sync_loop import MakeDesktop, SyncLoop
from deskhand.rollout.episode import desktop_spec
from deskhand.tasks.judge import MilestoneTracker, judge, start_value
from deskhand.tasks.outcome import MILESTONE_CAP, Outcome, Scored, dense_reward
from deskhand.tasks.task import Task

Action = Op | Sequence[Op] | str | dict[str, Any]


@dataclass(frozen=True)
class ResetConfig:
    """Task to start; None is the environment's default."""

    task_id: str | None = None


@dataclass(frozen=True)
class RolloutStep:
    """Result of one action. `reward` is 0 except for the last step of `collect_rollout`."""

    observation: Frame
    action: Action
    reward: float
    done: bool
    info: dict[str, Any] = field(default_factory=dict)
    """`step` (from 1), `milestones` (fraction reached), and at the end `stopped`: "done", "fail", "answer",
    "max_steps" or "stuck"."""


class RLEnvironment:
    """One task at a time on one desktop (default: a local one). Not thread-safe; `close` stops the desktop.

    `make_task(task_id)` returns the task. With `evaluate_every_step`, each step's info has "milestones".
    """

    def __init__(
        self,
        make_task: Callable[[str], Task],
        default_task_id: str | None = None,
        *,
        desktop: MakeDesktop | None = None,
        # pyright reads a cached property as a type of its own
        action_format: ActionFormat = openadapt_json.FORMAT,  # pyright: ignore[reportArgumentType]
        evaluate_every_step: bool = False,
    ) -> None:
        self._make_task, self._default, self._format = make_task, default_task_id, action_format
        self._every_step = evaluate_every_step
        self._loop = SyncLoop()
        self._desktop = self._loop.desktop(desktop or LocalDesktop)
        self._closed = False
        self._frame: Frame | None = None
        self._task: Task | None = None
        self._milestones: MilestoneTracker | None = None
        self._baseline = 0.0
        self._stopped: str | None = None
        self._answer: str | None = None
        self.trajectory: list[RolloutStep] = []
        """Steps since `reset`."""

    def reset(self, config: ResetConfig | None = None) -> Frame:
        """Reset the desktop, set the task up and return the first frame.

        Raises `ConfigError` without a task, or if the start state solves it.
        """
        wanted = config.task_id if config is not None and config.task_id is not None else self._default
        if wanted is None:
            raise ConfigError("no task was named; give ResetConfig(task_id=...) or a default_task_id")
        self._task = self._frame = self._milestones = self._stopped = self._answer = None
        self.trajectory = []
        task = self._make_task(wanted)
        tracker = MilestoneTracker(task)
        frame, baseline = self._loop.run(self._begin(task, tracker))
        self._task, self._milestones, self._frame, self._baseline = task, tracker, frame, baseline
        return frame

    async def _begin(self, task: Task, tracker: MilestoneTracker) -> tuple[Frame, float]:
        await self._desktop.reset(desktop_spec(task))
        await task.setup(self._desktop)
        share = min(await tracker.after_step(self._desktop), MILESTONE_CAP)
        baseline = max(share, await start_value(task, self._desktop))
        return await self._desktop.observe(), baseline

    @property
    def task(self) -> Task:
        """Task of the episode. Raises `InfrastructureError` without one."""
        if self._task is None:
            raise InfrastructureError("there is no episode; call reset first")
        return self._task

    @property
    def stopped(self) -> str | None:
        """Why the episode ended, None while it runs."""
        return self._stopped

    def step(self, action: Action) -> RolloutStep:
        """Perform one action.

        Raises `AgentError` (nothing performed, no step counted) for an invalid or impossible action,
        `InfrastructureError` before `reset`, after the end, or if the desktop fails.
        """
        task = self.task
        if self._stopped is not None:
            raise InfrastructureError(f"the episode is over ({self._stopped}); call reset first")
        ops = self._ops(action)
        frame, share = self._loop.run(self._perform(ops))
        self._frame = frame
        last = ops[-1] if ops else None
        if isinstance(last, TERMINAL_OPS):
            self._stopped = "done" if isinstance(last, Done) else "fail" if isinstance(last, Fail) else "answer"
            self._answer = last.text if isinstance(last, Answer) else None
        elif len(self.trajectory) + 1 >= task.max_steps:
            self._stopped = "max_steps"
        info: dict[str, Any] = {"step": len(self.trajectory) + 1} | ({"milestones": share} if self._every_step else {})
        if self._stopped is not None:
            info["stopped"] = self._stopped
        step = RolloutStep(frame, action, 0.0, self._stopped is not None, info)
        self.trajectory.append(step)
        return step

    async def _perform(self, ops: list[Op]) -> tuple[Frame, float]:
        frame = await self._desktop.perform(ops, action_id=secrets.token_hex(16))
        assert self._milestones is not None
        return frame, await self._milestones.after_step(self._desktop)

    def _ops(self, action: Action) -> list[Op]:
        if isinstance(action, dict):
            action = json.dumps(action)
        if isinstance(action, str):
            return self._format.parse(action, ScreenView.of_screen(self.task.width, self.task.height))
        return list(action) if isinstance(action, Sequence) else [action]

    def pixel_action(
        self,
        x: int | None = None,
        y: int | None = None,
        *,
        x_frac: float | None = None,
        y_frac: float | None = None,
        action_type: str = "click",
        text: str | None = None,
        key: str | None = None,
        **more: Any,
    ) -> RolloutStep:
        """Perform a step at a point in pixels or fractions, with OpenAdapt's names: "click", "double_click",
        "right_click", "type", "key", "scroll" (`scroll_direction`), "wait", "done". Raises like `step`."""
        given: dict[str, Any] = {"type": action_type, "text": text, "key": key} | more
        if x_frac is not None or y_frac is not None:
            given |= {"x": x_frac, "y": y_frac}
        elif x is not None or y is not None:
            given["target"] = {"x": x, "y": y, "is_normalized": False}
        given = {name: value for name, value in given.items() if value is not None}
        view = ScreenView.of_screen(self.task.width, self.task.height)
        return self.step(openadapt_json.FORMAT.parse(json.dumps(given), view))

    def observe(self) -> Frame:
        self._frame = self._loop.run(self._desktop.observe())
        return self._frame

    def outcome(self) -> Outcome:
        """Evaluate the current end state: `Scored`, or `Errored` with its cause."""
        judged = judge(
            self.task,
            self._desktop,
            milestones=self._milestones,
            declared_infeasible=self._stopped == "fail",
            answer=self._answer,
            acted_at=time.monotonic() if self.trajectory else None,
        )
        return self._loop.run(judged)

    def evaluate(self) -> float:
        """Return the score of the end state in [0, 1]. Raises `InfrastructureError` or `EvaluatorError` without one."""
        outcome = self.outcome()
        if isinstance(outcome, Scored):
            return outcome.value
        raise (EvaluatorError if outcome.cause == "evaluator" else InfrastructureError)(outcome.message)

    def evaluate_dense(self) -> float:
        """Return the reward including milestones reached at any time (`dense_reward`). Raises like `evaluate`."""
        value = self.evaluate()
        assert self._milestones is not None
        return dense_reward(value, self._milestones.reached_share, self._baseline)

    def collect_rollout(
        self,
        agent: Callable[[Frame], Action],
        max_steps: int | None = None,
        *,
        stuck_window: int = 0,
        config: ResetConfig | None = None,
    ) -> list[RolloutStep]:
        """Run and score one episode; the last step's reward is `evaluate_dense`, the others 0.

        It ends when the agent stops, after `max_steps` (or the task's own limit), or, with `stuck_window` > 0, after
        as many consecutive actions without an effect on the screen (`StuckDetector`). Raises like `reset`, `step` and
        `evaluate_dense`.
        """
        frame = self.reset(config)
        stuck = StuckDetector(frame)
        while self._stopped is None:
            step = self.step(agent(frame))
            frame = step.observation
            unchanged = stuck.after_step(self._ops(step.action), frame)
            if self._stopped is None and max_steps is not None and len(self.trajectory) >= max_steps:
                self._stopped = "max_steps"
            if self._stopped is None and stuck_window and unchanged >= stuck_window:
                self._stopped = "stuck"
        last = self.trajectory[-1]
        ended = RolloutStep(
            last.observation, last.action, self.evaluate_dense(), True, last.info | {"stopped": self._stopped}
        )
        self.trajectory[-1] = ended
        return list(self.trajectory)

    def close(self) -> None:
        """Stop the desktop. Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._desktop.close())
            self._loop.close()

    def __enter__(self) -> RLEnvironment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
