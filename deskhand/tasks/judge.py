"""Run a task's checks and turn them into an outcome.

Used by the rollout and the audit; start with `judge` and `MilestoneTracker`.

Invariants: a failing check or desktop gives `Errored`, never a score of 0; a milestone once reached stays reached.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace

from deskhand import pausable_timeout
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.outcome import MAX_FINDINGS, MILESTONE_CAP, Errored, Finding, Outcome, Scored
from deskhand.tasks.task import CheckFunction, CheckResult, Task

CHECK_TIMEOUT_S = 20.0
SETTLE_GRACE_S = 1.0
"""Default time in which a check may become true after the end, because programs may still be writing."""
_RETRY_INTERVAL_S = 0.1


class AlreadySolvedError(ConfigError):
    """The untouched start state already scores 1."""


async def judge(
    task: Task,
    desktop: StageableDesktop,
    *,
    milestones: MilestoneTracker | None = None,
    declared_infeasible: bool = False,
    timeout_s: float = CHECK_TIMEOUT_S,
    grace_s: float | None = None,
) -> Outcome:
    """Return the outcome of the end state: the first full score within the grace period, else the last value.

    `parts` has "end_state" and, with `milestones`, "milestone: NAME" for each. `grace_s` defaults to the task's.
    Raises only cancellation.
    """
    if declared_infeasible and task.infeasible_reward is not None:
        return Scored(task.infeasible_reward, {"end_state": task.infeasible_reward})
    timeout_s = task.check_timeout_s or timeout_s
    grace_s = grace_s if grace_s is not None else SETTLE_GRACE_S if task.settle_grace_s is None else task.settle_grace_s
    deadline = time.monotonic() + grace_s
    try:
        check = await _run_check(task.id, "check", task.check, desktop, timeout_s)
        while check.value < 1.0 and not check.no_retry and time.monotonic() < deadline:
            await asyncio.sleep(_RETRY_INTERVAL_S)
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
    findings = check.findings[:MAX_FINDINGS] or (Finding("end state", check.value, check.detail),)
    return Scored(check.value, parts, guest_trusted, findings)


async def initial_score(task: Task, desktop: StageableDesktop, *, timeout_s: float = CHECK_TIMEOUT_S) -> float:
    """Return the score of the untouched start state, reached milestones included.

    Raises `AlreadySolvedError` if it is 1, and `EvaluatorError` or `InfrastructureError` if a check fails.
    """
    value = (await _run_check(task.id, "check", task.check, desktop, timeout_s)).value
    tracker = MilestoneTracker(task, timeout_s=timeout_s)
    value = max(value, min(await tracker.after_step(desktop), MILESTONE_CAP))
    if value >= 1.0:
        raise AlreadySolvedError(
            f"task {task.id}: the start state already scores {value:g}; change the setup or the check"
        )
    return value


class MilestoneTracker:
    """Milestones that were reached at any time in the episode."""

    def __init__(self, task: Task, *, timeout_s: float = CHECK_TIMEOUT_S) -> None:
        """Raise `ConfigError` for invalid weights, duplicate names, or an `after` that names a later milestone."""
        weights = [milestone.weight for milestone in task.milestones]
        if any(weight < 0 for weight in weights) or sum(weights) > 1 + 1e-9:
            raise ConfigError(f"task {task.id}: milestone weights must be >= 0 and sum to at most 1, got {weights}")
        self.reached = {milestone.name: 0.0 for milestone in task.milestones}
        """Best value so far by milestone name."""
        self.guest_trusted = False
        """Whether a milestone was reached by a check that trusts a guest process."""
        if len(self.reached) != len(weights):
            raise ConfigError(f"task {task.id}: two milestones have the same name")
        for index, milestone in enumerate(task.milestones):
            if late := set(milestone.after) - {earlier.name for earlier in task.milestones[:index]}:
                raise ConfigError(
                    f"task {task.id}: milestone {milestone.name!r}: after must name earlier ones, got {sorted(late)}"
                )
        self._task = task
        self._timeout_s = timeout_s

    @property
    def reached_share(self) -> float:
        return min(1.0, sum(milestone.weight * self.reached[milestone.name] for milestone in self._task.milestones))

    async def after_step(self, desktop: StageableDesktop) -> float:
        """Check every milestone that is due and not fully reached; return `reached_share`.

        Raises `EvaluatorError` or `InfrastructureError`.
        """
        for milestone in self._task.milestones:
            due = all(self.reached[name] >= 1.0 for name in milestone.after)
            if due and self.reached[milestone.name] < 1.0:
                where = f"milestone {milestone.name!r}"
                check = await _run_check(self._task.id, where, milestone.check, desktop, self._timeout_s)
                self.reached[milestone.name] = max(self.reached[milestone.name], check.value)
                self.guest_trusted = self.guest_trusted or (check.untrusted_source and check.value > 0)
        return self.reached_share


async def _run_check(
    task_id: str, where: str, function: CheckFunction, desktop: StageableDesktop, timeout_s: float
) -> CheckResult:
    """Run one check and validate its value; an invalid document is 0.

    Raises `InfrastructureError`, or `EvaluatorError` for any other failure.

    Checks read files that the agent could write, so any exception may be raised.
    """
    deadline: asyncio.Timeout | None = None
    try:
        async with pausable_timeout.pausable_timeout(timeout_s) as deadline:
            check = await function(desktop)
    except InfrastructureError:
        raise
    except InvalidDocument as error:  # the agent wrote the file
        return CheckResult(0.0, str(error))
    except Exception as error:
        if deadline is not None and deadline.expired():
            raise EvaluatorError(f"task {task_id}: {where} took longer than {timeout_s:g} s") from error
        raise EvaluatorError(f"task {task_id}: {where} raised {type(error).__name__}: {error}") from error
    value = float(check.value)
    if not (math.isfinite(value) and 0.0 <= value <= 1.0):
        raise EvaluatorError(f"task {task_id}: {where} must return a value in [0, 1], got {value}")
    return replace(check, value=value)
