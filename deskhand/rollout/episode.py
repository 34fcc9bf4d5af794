"""One episode from a fresh desktop to a judged end. Invariant: an outage is never a zero: what the agent did is scored on the
end state, what desktops, engines and evaluators did is `Unscored` with its cause.

`run_episode` is given a desktop and a client; leasing is the scheduler's. `DesktopWorkflow` gives the same episode the form of
AReaL's agent workflows and needs nothing of AReaL.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import structlog

from deskhand import pausable_timeout
from deskhand.actions.ops import Click, Drag, MouseDown, Op, to_screen_px
from deskhand.agents.desktop_agent import AfterStep, DesktopAgent, OnFrame, Step, Transcript
from deskhand.desktop.base import Desktop, DesktopSpec, Frame
from deskhand.errors import AgentError, DeskhandError, EvaluatorError, InfrastructureError
from deskhand.recorder.graph import CallGraph
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.tasks import end_state
from deskhand.tasks.judge import MilestoneTracker, judge
from deskhand.tasks.outcome import MILESTONE_CAP, Cause, Errored, Outcome, Scored, dense_reward
from deskhand.tasks.task import Rect, Task

log = structlog.get_logger()
__all__ = ["EpisodeResult", "ScoredWorkflow", "desktop_spec", "errored_result", "run_episode"]


def desktop_spec(task: Task) -> DesktopSpec:
    """The desktop that a task is played on."""
    return DesktopSpec(task.theme, task.width, task.height, accessibility=task.accessibility)


class _Course:
    """What is known of an episode while it runs, so that an outage at any point leaves a record of what came before."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.seconds: dict[str, float] = {}
        self.transcript = Transcript((), "max_steps")
        self.target: Rect | None = None
        self.milestones = MilestoneTracker(task)
        self.instruction = task.instruction
        self.share_at_start = 0.0
        """What the milestones that already hold in the start state are worth."""
        self.meter = pausable_timeout.PausedTime()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Seconds of a phase, what it was parked left out."""
        before, parked_s = time.monotonic(), self.meter.parked_s
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - before - (self.meter.parked_s - parked_s)


async def run_episode(
    ticket: EpisodeRequest,
    desktop: Desktop,
    agent: DesktopAgent,
    client: openai.AsyncOpenAI,
    *,
    end_session: Callable[[], CallGraph] = CallGraph,
    keep_frame: OnFrame | None = None,
    end_states: Path | None = None,
    longest_s: float | None = None,
    seed: int | None = None,
) -> EpisodeResult:
    """Reset, set up, solve, judge. Raises nothing but `asyncio.CancelledError`; failures become the result's outcome.

    An episode that takes longer than `longest_s`, what it was parked left out, is an outage: its desktop hangs.

    `end_session` closes the recorder's session and returns its call graph; it is called once, also when the episode failed or
    was cancelled. `keep_frame` gets every screen that the model saw and the last one. In the folder `end_states` is kept what
    was judged; that it cannot be kept changes no outcome. `seed` is what the policy draws by.
    """
    course, began = _Course(ticket.task), time.monotonic()
    graph, ended = CallGraph(), False
    try:
        with pausable_timeout.measure_paused() as course.meter:
            most_s = min((s for s in (longest_s, ticket.task.episode_timeout_s) if s is not None), default=None)
            outcome = await _in_time(_run(course, desktop, agent, client, keep_frame, seed), most_s)
        ended, graph = True, end_session()
        if end_states is not None:
            await _keep_end_state(
                ticket.task, desktop, outcome, end_states, failed=course.transcript.stop_reason == "fail"
            )
    except EvaluatorError as error:
        outcome = Errored("evaluator", _line(error))
    except Exception as error:
        outcome = Errored("infrastructure", _line(error))
    finally:
        if not ended:
            with suppress(DeskhandError):
                graph = end_session()
    course.seconds["parked"] = course.meter.parked_s
    course.seconds["total"] = time.monotonic() - began - course.meter.parked_s
    course.seconds["model"] = course.transcript.model_seconds
    return _result(ticket, course, outcome, graph)


class _InSteps:
    """`desktop` as the agent sees it, where a step that takes longer than `most_s` is an outage."""

    def __init__(self, desktop: Desktop, most_s: float) -> None:
        self._desktop, self._most_s = desktop, most_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desktop, name)

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        try:
            async with pausable_timeout.pausable_timeout(self._most_s):
                return await self._desktop.perform(ops, action_id=action_id)
        except TimeoutError:
            raise InfrastructureError(
                f"a step took longer than {self._most_s:g} s (the task's limits.step_s)"
            ) from None


async def _keep_end_state(task: Task, desktop: Desktop, outcome: Outcome, folder: Path, *, failed: bool) -> None:
    try:
        await end_state.save_end_state(task, desktop, outcome, folder, declared_infeasible=failed)
    except Exception as error:  # also of a desktop that cannot tell its files
        log.warning("end state not kept", task=task.id, error=_line(error))


async def _in_time(work: Awaitable[Outcome], longest_s: float | None) -> Outcome:
    limit: asyncio.Timeout | None = None
    try:
        async with pausable_timeout.pausable_timeout(longest_s) as limit:
            return await work
    except TimeoutError as error:
        if limit is None or not limit.expired():
            raise
        raise InfrastructureError(f"the episode took longer than {longest_s:g} s") from error


def errored_result(ticket: EpisodeRequest, cause: Cause, message: str) -> EpisodeResult:
    """An episode that ended before anything was recorded."""
    return _result(ticket, _Course(ticket.task), Errored(cause, message), CallGraph())


async def _run(
    course: _Course,
    desktop: Desktop,
    agent: DesktopAgent,
    client: openai.AsyncOpenAI,
    keep_frame: OnFrame | None,
    seed: int | None,
) -> Outcome:
    """The episode itself; returns what the judge says of the end state."""
    task = course.task

    async def after_step(step: Step, frame: Frame) -> None:
        await course.milestones.after_step(desktop)

    with course.phase("reset"):
        await desktop.reset(desktop_spec(task))
    with course.phase("setup"):
        await task.setup(desktop)
        course.target, _ = await task.first_click_targets(desktop)
        course.instruction = await task.resolve_instruction(desktop)
        course.share_at_start = await course.milestones.after_step(desktop)
        frame = await desktop.observe()
    with course.phase("solve"):
        hook: AfterStep | None = after_step if task.milestones else None
        course.transcript = await agent.solve(
            desktop if task.step_timeout_s is None else _InSteps(desktop, task.step_timeout_s),  # type: ignore[arg-type]
            course.instruction,
            client,
            frame=frame,
            max_steps=task.max_steps,
            after_step=hook,
            keep_frame=keep_frame,
            seed=seed,
        )
    with course.phase("judge"):
        return await judge(task, desktop, milestones=course.milestones, declared_infeasible=course.transcript.stop_reason == "fail")


def _result(ticket: EpisodeRequest, course: _Course, outcome: Outcome, graph: CallGraph) -> EpisodeResult:
    task = ticket.task
    reward, terms = None, dict[str, float]()
    if isinstance(outcome, Scored):
        terms = {
            "final": outcome.value,
            "milestones": course.milestones.reached_share,
            "baseline": min(course.share_at_start, MILESTONE_CAP),
        }
        reward = dense_reward(outcome.value, terms["milestones"], terms["baseline"])
        if task.format_penalty:
            terms["format"] = -task.format_penalty * course.transcript.num_format_errors
            reward += terms["format"]
        if task.step_cost:
            terms["steps"] = -task.step_cost * len(course.transcript.steps)
            reward += terms["steps"]
    versions = [version for call in graph.calls for version in call.completion.versions]
    return EpisodeResult(
        episode_id=ticket.episode_id,
        task_id=task.id,
        family=task.family,
        seed=task.seed,
        split=task.split,
        group_id=ticket.group_id,
        member=ticket.member,
        outcome=outcome,
        reward=reward,
        reward_terms=terms,
        transcript=course.transcript,
        graph=graph,
        first_click_on_target=first_click_on_target(course.transcript, course.target, task)
        if reward is not None
        else None,
        seconds=course.seconds,
        version_min=min(versions, default=-1),
        version_max=max(versions, default=-1),
        instruction=course.instruction,
        target=(course.target.left, course.target.top, course.target.right, course.target.bottom)
        if course.target
        else None,
    )


def first_click_on_target(transcript: Transcript, target: Rect | None, task: Task) -> bool | None:
    """Whether the first press of a button lands in `target`; False when nothing was pressed, None when there is no target."""
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


Lease = Callable[[], AbstractAsyncContextManager[Desktop]]


class ScoredWorkflow:
    """The episode as an agent workflow: `reward = await workflow.run({"family": ..., "seed": ...})`.

    `lease` opens an asynchronous context that yields a desktop, `make_task(family, seed)` makes the task. Constructing one is
    cheap, as it may happen once per episode.
    """

    def __init__(self, lease: Lease, make_task: Callable[[str, int], Task], agent: DesktopAgent | None = None) -> None:
        self.lease = lease
        self.make_task = make_task
        self.agent = agent or DesktopAgent()

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        """The reward: in [0, 1], less the format penalty that the task may ask for.

        `extra` may hold `base_url`, `api_key` and `http_client`; otherwise OPENAI_BASE_URL and OPENAI_API_KEY say where the model
        is. Raises `InfrastructureError` or `EvaluatorError` when the episode has no score."""
        task = self.make_task(data["family"], int(data["seed"]))
        ticket = EpisodeRequest(str(data.get("episode_id", task.id)), task)
        async with _client(extra) as client, self.lease() as desktop:
            result = await run_episode(ticket, desktop, self.agent, client)
        if isinstance(result.outcome, Errored):
            kind = EvaluatorError if result.outcome.cause == "evaluator" else InfrastructureError
            raise kind(f"{task.id} has no score: {result.outcome.message}")
        return float(result.reward or 0.0)


@asynccontextmanager
async def _client(extra: dict[str, Any]) -> AsyncIterator[openai.AsyncOpenAI]:
    client = openai.AsyncOpenAI(
        base_url=extra.get("base_url") or os.environ.get("OPENAI_BASE_URL"),
        api_key=extra.get("api_key") or os.environ.get("OPENAI_API_KEY") or "none",
        http_client=extra.get("http_client"),
        max_retries=0,
    )
    try:
        yield client
    finally:
        if extra.get("http_client") is None:
            await client.close()
