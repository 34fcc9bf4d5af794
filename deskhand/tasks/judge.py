"""Turns a task's checks into an outcome. Invariant: a failing judge or desktop is `Unscored`, never a zero, and a milestone once
reached stays reached.

A check is our own code over files that the agent could write, so anything may go wrong in it: whatever it raises is the
evaluator's fault, except an `InfrastructureError`, which is the desktop's. Cancelling the episode passes through.
"""

from __future__ import annotations

import asyncio
import math
import time

from deskhand import pausable_timeout
from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError
from deskhand.tasks.outcome import MAX_FINDINGS, MILESTONE_CAP, Errored, Finding, Outcome, Scored
from deskhand.tasks.task import CheckFunction, CheckResult, StagedDesktopLike, Task

CHECK_TIMEOUT_S = 20.0
GRACE_S = 1.0
"""A program may still be writing when the agent stops: the check may come true within this time."""
_LOOK_AGAIN_S = 0.1


class AlreadySolvedError(ConfigError):
    """The untouched start state scores 1 already."""


async def judge(
    task: Task,
    desktop: StagedDesktopLike,
    *,
    milestones: MilestoneTracker | None = None,
    failed: bool = False,
    timeout_s: float = CHECK_TIMEOUT_S,
    grace_s: float | None = None,
) -> Outcome:
    """The outcome of the end state: the first full score within `grace_s` (the task's, or `GRACE_S`), or what the check says then.
    Raises only cancellation.

    `parts` holds "end_state", and with `milestones` one "milestone: NAME" for each, as reached so far. `failed` says that the
    agent's last word was that the task cannot be done.
    """
    if failed and task.infeasible_reward is not None:
        return Scored(task.infeasible_reward, {"end_state": task.infeasible_reward})
    timeout_s = task.check_timeout_s or timeout_s
    grace_s = grace_s if grace_s is not None else GRACE_S if task.settle_grace_s is None else task.settle_grace_s
    deadline = time.monotonic() + grace_s
    try:
        check = await _run_check(task.id, "check", task.check, desktop, timeout_s)
        while check.value < 1.0 and not check.no_retry and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_S)
            check = await _run_check(task.id, "check", task.check, desktop, timeout_s)
    except InfrastructureError as error:
        return Errored("infrastructure", str(error))
    except EvaluatorError as error:
        return Errored("evaluator", str(error))
    parts = {"end_state": check.value}
    guest_trusted = check.untrusted_source
    if milestones is not None:
        parts |= {f"milestone: {name}": value for name, value in milestones.reached.items()}
        guest_trusted = guest_trusted or milestones.guest_trusted
    return Scored(check.value, parts, guest_trusted, _findings(check))


def _findings(check: CheckResult) -> tuple[Finding, ...]:
    """A check's clauses; one that names none is a clause of its own."""
    return check.findings[:MAX_FINDINGS] or (Finding("end state", check.value, check.detail),)


async def initial_score(task: Task, desktop: StagedDesktopLike, *, timeout_s: float = CHECK_TIMEOUT_S) -> float:
    """What the untouched start state is worth: `b` of `outcome.dense_reward`, milestones that already hold included.

    Raises `SolvedAtStart` when it is 1 or more (the task would be solved by doing nothing), and what the checks raise
    (`EvaluatorError`, `InfrastructureError`).
    """
    value = (await _run_check(task.id, "check", task.check, desktop, timeout_s)).value
    tracker = MilestoneTracker(task, timeout_s=timeout_s)
    value = max(value, min(await tracker.after_step(desktop), MILESTONE_CAP))
    if value >= 1.0:
        raise AlreadySolvedError(
            f"task {task.id}: the start state already scores {value:g}; stage it so that doing nothing does not solve it"
        )
    return value


class MilestoneTracker:
    """Which milestones were reached at any time in the episode. `share` is their summed weight, in [0, 1]."""

    def __init__(self, task: Task, *, timeout_s: float = CHECK_TIMEOUT_S) -> None:
        """Raises `ConfigError` when the weights are negative or sum to more than 1, two milestones share a name, or one comes
        after another that does not stand before it."""
        weights = [milestone.weight for milestone in task.milestones]
        if any(weight < 0 for weight in weights) or sum(weights) > 1 + 1e-9:
            raise ConfigError(f"task {task.id}: milestone weights {weights} must be >= 0 and sum to at most 1")
        self.reached = {milestone.name: 0.0 for milestone in task.milestones}
        """Best value so far by milestone name."""
        self.guest_trusted = False
        """Whether a milestone was reached on the word of a live guest process."""
        if len(self.reached) != len(weights):
            raise ConfigError(f"task {task.id}: two milestones have the same name; give each its own")
        for index, milestone in enumerate(task.milestones):
            if late := set(milestone.after) - {earlier.name for earlier in task.milestones[:index]}:
                raise ConfigError(
                    f"task {task.id}: milestone {milestone.name!r} comes after {sorted(late)}, which must stand before it"
                )
        self._task = task
        self._timeout_s = timeout_s

    @property
    def reached_share(self) -> float:
        return min(1.0, sum(milestone.weight * self.reached[milestone.name] for milestone in self._task.milestones))

    async def after_step(self, desktop: StagedDesktopLike) -> float:
        """Look at every milestone that is due and not yet fully reached; returns `share`. Raises `EvaluatorError` or
        `InfrastructureError`."""
        for milestone in self._task.milestones:
            due = all(self.reached[name] >= 1.0 for name in milestone.after)
            if due and self.reached[milestone.name] < 1.0:
                where = f"milestone {milestone.name!r}"
                check = await _run_check(self._task.id, where, milestone.check, desktop, self._timeout_s)
                self.reached[milestone.name] = max(self.reached[milestone.name], check.value)
                self.guest_trusted = self.guest_trusted or (check.untrusted_source and check.value > 0)
        return self.reached_share


async def _run_check(
    task_id: str, where: str, function: CheckFunction, desktop: StagedDesktopLike, timeout_s: float
) -> CheckResult:
    """Run one check; its value is sure to be in [0, 1]. Raises `InfrastructureError` as it comes, all else as `EvaluatorError`."""
    deadline: asyncio.Timeout | None = None
    try:
        async with pausable_timeout.pausable_timeout(timeout_s) as deadline:
            check = await function(desktop)
    except InfrastructureError:
        raise
    except Exception as error:
        if deadline is not None and deadline.expired():
            raise EvaluatorError(f"task {task_id}: {where} took longer than {timeout_s:g} s") from error
        raise EvaluatorError(f"task {task_id}: {where} raised {type(error).__name__}: {error}") from error
    value = float(check.value)
    if not (math.isfinite(value) and 0.0 <= value <= 1.0):
        raise EvaluatorError(f"task {task_id}: {where} gave {value}; a check must give a number from 0 to 1")
    return CheckResult(value, check.detail, check.untrusted_source, check.findings, check.no_retry)
