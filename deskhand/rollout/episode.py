"""One episode: reset, set up, solve and judge a task on a leased desktop.

Used by `rollout.runner` and `rollout.scored_workflow`; start with `run_episode`.

Invariant: an outage is never scored 0, and what the agent did is never an outage. Failures of desktops, engines and
evaluators become `Errored` with a cause. A desktop that its guests broke after the agent acted is scored 0, and an
agent that ends with an `AgentError` is scored on the end state.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import structlog

from deskhand import pausable_timeout
from deskhand.actions.durations import duration_s
from deskhand.actions.formats.limits import points_of
from deskhand.actions.ops import Click, Drag, MouseDown, Op, Wait, to_screen_px
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.agents.episode_context import (
    AfterStep,
    Agent,
    EpisodeContext,
    EpisodeOver,
    EpisodeSettings,
    OnFrame,
    Step,
    Transcript,
)
from deskhand.desktop.base import DesktopSpec, Frame, StageableDesktop
from deskhand.errors import AgentError, ConfigError, DeskhandError, EvaluatorError, GuestFailure, InfrastructureError
from deskhand.recorder.graph import CallGraph
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.live_episode import LiveEpisode
from deskhand.tasks import end_state
from deskhand.tasks.judge import AlreadySolvedError, MilestoneTracker, broken_by_agent, judge, start_value
from deskhand.tasks.outcome import MILESTONE_CAP, Cause, Errored, Outcome, Scored, dense_reward
from deskhand.tasks.task import Rect, Task

log = structlog.get_logger()


def desktop_spec(task: Task) -> DesktopSpec:
    """Return the desktop that a task needs."""
    return DesktopSpec(task.theme, task.width, task.height, accessibility=task.accessibility)


class _Progress:
    """State of a running episode, so that an outage at any point leaves a record of the steps before it."""

    def __init__(self, request: EpisodeRequest, live: LiveEpisode | None = None) -> None:
        self.request, self.task, self.live = request, request.task, live
        self.seconds: dict[str, float] = {}
        self.transcript = Transcript((), "max_steps")
        self.target: Rect | None = None
        self.milestones = MilestoneTracker(self.task)
        self.milestone_steps: dict[str, int] = {}
        self.instruction = self.task.instruction
        self.baseline = 0.0
        """Reward that the start state is worth, which no episode is paid for."""
        self.paused = pausable_timeout.PausedTime()
        self.desktop: _AgentDesktop | None = None
        """The desktop of the agent; None until the agent starts."""

    async def check_milestones(self, desktop: StageableDesktop, step: int) -> float:
        """Check the milestones after a step (-1: at the start), note which of them rose, and return the share."""
        before = dict(self.milestones.reached)
        share = await self.milestones.after_step(desktop)
        risen = [name for name, value in self.milestones.reached.items() if value > before[name]]
        self.milestone_steps |= dict.fromkeys(risen, step)
        return share

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase, without the time spent waiting for quota."""
        if self.live is not None:
            self.live.phase = name
        started, paused_s = time.monotonic(), self.paused.paused_s
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - started - (self.paused.paused_s - paused_s)


async def run_episode(  # noqa: PLR0913
    request: EpisodeRequest,
    desktop: StageableDesktop,
    agent: Agent,
    client: openai.AsyncOpenAI,
    settings: EpisodeSettings | None = None,
    *,
    close_session: Callable[[], CallGraph] = CallGraph,
    on_frame: OnFrame | None = None,
    end_state_dir: Path | None = None,
    timeout_s: float | None = None,
    seed: int | None = None,
    live: LiveEpisode | None = None,
) -> EpisodeResult:
    """Reset, set up, solve and judge. Failures become the outcome.

    Raises only `asyncio.CancelledError`, and before the agent starts `ConfigError` for what a person must change (a
    screen of another size, a desktop without what the task needs), which ends the run.

    Args:
        close_session: Closes the recorder session and returns its call graph. Called once, also after a failure.
        on_frame: Receives every screenshot shown to the model, and the last one.
        end_state_dir: Folder for the judged end state. Failing to write it does not change the outcome.
        timeout_s: Maximum duration without quota waits; a longer episode is an outage.
        seed: Sampling seed of the policy.
        live: Shows the episode to people who watch, who may take over.
    """
    progress, started = _Progress(request, live), time.monotonic()
    graph, closed = CallGraph(), False
    try:
        with pausable_timeout.measure_paused() as progress.paused:
            limit_s = min((s for s in (timeout_s, request.task.episode_timeout_s) if s is not None), default=None)
            running = _run(progress, desktop, agent, client, settings or settings_of(agent), on_frame, seed)
            outcome = await _with_timeout(progress, running, limit_s)
        closed, graph = True, close_session()
        if end_state_dir is not None:
            end = _ending(progress.transcript)
            await _save_end_state(request.task, desktop, outcome, end_state_dir, **end)
    except EvaluatorError as error:
        outcome = Errored("evaluator", _line(error))
    except AlreadySolvedError as error:
        outcome = Errored("already_solved", _line(error))
    except ConfigError as error:
        if progress.desktop is None:  # before the agent started
            raise
        outcome = Errored("infrastructure", _line(error))
    except Exception as error:
        outcome = outcome_of_failure(error)
    finally:
        if not closed:
            with suppress(DeskhandError):
                graph = close_session()
    progress.seconds["quota_wait"] = progress.paused.paused_s
    progress.seconds["total"] = time.monotonic() - started - progress.paused.paused_s
    progress.seconds["model"] = progress.transcript.model_seconds
    return _result(request, progress, outcome, graph)


class _AgentDesktop:
    """A desktop as the agent has it: notes when it acted last; a step that takes longer than `timeout_s` is an outage,
    one that asks for as much the agent's error.

    Only reading does not act, so that nothing by which an agent could break its desktop is overlooked.
    """

    def __init__(self, desktop: StageableDesktop, task: Task) -> None:
        self.judged, self._timeout_s, self._size = desktop, task.step_timeout_s, (task.width, task.height)
        self.acting = False
        self.acted_at: float | None = None
        """`time.monotonic()` of the last action; None before the first."""
        self.asked_s = 0.0
        """Seconds that the agent's actions take on any machine, waits included."""

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            self.acted_at = time.monotonic()
        return getattr(self.judged, name)

    def _asked_s(self, op: Op) -> float:
        try:
            return duration_s(op, [to_screen_px(point, *self._size) for point in points_of(op)])
        except AgentError:  # the desktop rejects it
            return 0.0

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        asked_s = sum(self._asked_s(op) for op in ops)
        if self._timeout_s is not None and asked_s >= self._timeout_s:
            how = "waits" if any(isinstance(op, Wait) for op in ops) else "takes"
            raise AgentError(f"a step may take {self._timeout_s:g} s, and this one {how} {asked_s:g} s")
        self.asked_s += asked_s
        self.acted_at, self.acting = time.monotonic(), True
        try:
            async with pausable_timeout.pausable_timeout(self._timeout_s):
                return await self.judged.perform(ops, action_id=action_id)
        except TimeoutError:
            if self._timeout_s is None:
                raise
            raise InfrastructureError(f"limits.step_timeout_s: a step took longer than {self._timeout_s:g} s") from None
        finally:
            self.acted_at, self.acting = time.monotonic(), False


_READS = {"observe", "pull", "listdir", "windows", "wait_window", "clipboard", "accessibility_tree"}


async def _save_end_state(task: Task, desktop: StageableDesktop, outcome: Outcome, folder: Path, **end: Any) -> None:
    try:
        await end_state.save_end_state(task, desktop, outcome, folder, **end)
    except Exception as error:  # the desktop may not support reading files
        log.warning("end_state.save_failed", task=task.id, error=_line(error))


async def _with_timeout(progress: _Progress, work: Awaitable[Outcome], timeout_s: float | None) -> Outcome:
    """Past the limit the episode is an outage, unless the agent itself asked for half of that time."""
    limit: asyncio.Timeout | None = None
    try:
        async with pausable_timeout.pausable_timeout(timeout_s) as limit:
            return await work
    except TimeoutError as error:
        if timeout_s is None or limit is None or not limit.expired():
            raise
        if progress.desktop is not None and 2 * progress.desktop.asked_s >= timeout_s:
            return await _judge(progress)
        raise InfrastructureError(f"the episode took longer than {timeout_s:g} s") from error


BUGS = (AttributeError, TypeError, NameError)
"""Exceptions that a mistake in code raises, and no desktop, engine or file."""


def outcome_of_failure(error: Exception) -> Errored:
    """Return the outcome of an episode that ended with an exception other than Deskhand's own evaluator errors."""
    if not isinstance(error, BUGS):
        return Errored("infrastructure", _line(error))
    log.error("episode.bug", exc_info=error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return Errored("bug", f"{type(error).__name__}: {_line(error)}{where}")


def errored_result(request: EpisodeRequest, cause: Cause, message: str) -> EpisodeResult:
    """Return the result of an episode that ended before anything was recorded."""
    return _result(request, _Progress(request), Errored(cause, message), CallGraph())


def settings_of(agent: Agent) -> EpisodeSettings:
    """Return the settings of an agent without separate ones."""
    return agent.settings if isinstance(agent, DesktopAgent) else EpisodeSettings()


async def _run(
    progress: _Progress,
    desktop: StageableDesktop,
    agent: Agent,
    client: openai.AsyncOpenAI,
    settings: EpisodeSettings,
    on_frame: OnFrame | None,
    seed: int | None,
) -> Outcome:
    task = progress.task
    if progress.live is not None:
        progress.live.desktop = desktop
    with progress.phase("reset"):
        await desktop.reset(desktop_spec(task))
    with progress.phase("setup"):
        await task.setup(desktop)
        progress.target, _ = await task.first_click_targets(desktop)
        progress.instruction = await task.resolve_instruction(desktop)
        share = min(await progress.check_milestones(desktop, -1), MILESTONE_CAP)
        progress.baseline = max(share, await start_value(task, desktop))
        frame = await desktop.observe()
    progress.desktop = _AgentDesktop(desktop, task)
    try:
        with progress.phase("solve"):
            await _solve(progress, progress.desktop, agent, client, settings, frame, on_frame, seed)
        return await _judge(progress)
    except GuestFailure as failure:
        if progress.desktop.acted_at is None:
            raise
        return broken_by_agent(failure, progress.milestones)


def _ending(transcript: Transcript) -> dict[str, Any]:
    """Return how the agent ended, as arguments of `judge` and `save_end_state`."""
    return {"declared_infeasible": transcript.stop_reason == "fail", "answer": transcript.answer}


async def _judge(progress: _Progress) -> Outcome:
    assert progress.desktop is not None
    progress.request.on_agent_ended()
    with progress.phase("judge"):
        return await judge(
            progress.task,
            progress.desktop.judged,
            milestones=progress.milestones,
            acted_at=progress.desktop.acted_at,
            **_ending(progress.transcript),
        )


async def _solve(
    progress: _Progress,
    desktop: _AgentDesktop,
    agent: Agent,
    client: openai.AsyncOpenAI,
    settings: EpisodeSettings,
    frame: Frame,
    on_frame: OnFrame | None,
    seed: int | None,
) -> None:
    """Run the agent; its transcript is kept however it ends."""
    task = progress.task

    async def after_step(step: Step, frame: Frame) -> None:
        await progress.check_milestones(desktop.judged, step.index)
        if task.terminated is not None and await task.terminated(desktop.judged):
            episode.end("terminated")

    hook: AfterStep | None = after_step if task.milestones or task.terminated else None
    episode = EpisodeContext(
        desktop,  # type: ignore[arg-type]
        progress.instruction,
        client,
        settings,
        frame=frame,
        max_steps=task.max_steps,
        after_step=hook,
        keep_frame=on_frame,
        seed=seed,
    )
    if progress.live is not None:
        progress.live.context = episode
    try:
        await agent.run(episode)
    except EpisodeOver:
        pass
    except AgentError as error:
        episode.reject("", error)
        episode.end("too_many_errors")
    finally:
        progress.transcript = episode.transcript


def _result(request: EpisodeRequest, progress: _Progress, outcome: Outcome, graph: CallGraph) -> EpisodeResult:
    task = request.task
    reward, terms = None, dict[str, float]()
    if isinstance(outcome, Scored):
        terms = {
            "final": outcome.value,
            "milestones": progress.milestones.reached_share,
            "baseline": progress.baseline,
        }
        reward = dense_reward(outcome.value, terms["milestones"], terms["baseline"])
        if task.format_penalty:
            terms["format"] = -task.format_penalty * progress.transcript.num_format_errors
            reward += terms["format"]
        if task.step_cost:
            terms["steps"] = -task.step_cost * len(progress.transcript.steps)
            reward += terms["steps"]
    versions = [version for call in graph.calls for version in call.completion.versions]
    return EpisodeResult(
        episode_id=request.episode_id,
        task_id=task.id,
        family=task.family,
        seed=task.seed,
        split=task.split,
        group_id=request.group_id,
        member=request.member,
        outcome=outcome,
        reward=reward,
        reward_terms=terms,
        transcript=progress.transcript,
        graph=graph,
        first_click_on_target=first_click_on_target(progress.transcript, progress.target, task)
        if reward is not None
        else None,
        seconds=progress.seconds,
        version_min=min(versions, default=-1),
        version_max=max(versions, default=-1),
        instruction=progress.instruction,
        target=(progress.target.left, progress.target.top, progress.target.right, progress.target.bottom)
        if progress.target
        else None,
        milestone_steps=progress.milestone_steps,
    )


def first_click_on_target(transcript: Transcript, target: Rect | None, task: Task) -> bool | None:
    """Return whether the first mouse press hits `target`; False without any press, None without a target."""
    if target is None:
        return None
    for op in (op for step in transcript.steps for op in step.ops):
        if isinstance(op, (Click, MouseDown, Drag)):
            return _presses(op, target, task)
    return False


def _presses(op: Op, target: Rect, task: Task) -> bool:
    point = op.path[0] if isinstance(op, Drag) else op.point if isinstance(op, (Click, MouseDown)) else None
    try:
        return point is not None and target.contains(*to_screen_px(point, task.width, task.height))
    except AgentError:
        return False


def _line(error: BaseException) -> str:
    return " ".join(f"{error}".split())[:500] or type(error).__name__
