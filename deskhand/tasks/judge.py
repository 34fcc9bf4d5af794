"""Run a task's checks and turn them into an outcome.

Used by the rollout and the audit; start with `judge` and `MilestoneTracker`.

Invariants: a failing check or desktop gives `Errored`, never a score of 0, unless the guests broke the desktop after
the agent had acted; the time of judging does not depend on the value; what is paid held at several readings; a
milestone once reached stays reached.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from deskhand import pausable_timeout
from deskhand.actions.ops import TERMINAL_OPS, Answer, Fail, Op
from deskhand.desktop.base import HasProgramList, StageableDesktop
from deskhand.errors import ConfigError, EvaluatorError, GuestFailure, InfrastructureError
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.outcome import MAX_FINDINGS, MILESTONE_CAP, Errored, Finding, Outcome, Scored
from deskhand.tasks.task import CheckFunction, CheckResult, Task

CHECK_TIMEOUT_S = 20.0
SETTLE_GRACE_S = 1.0
"""Default time from the last action to the judgment, because programs may still be writing."""
MAX_BUSY_S = 2.0
"""Maximum time for which busy programs delay the judgment after that: on a busy machine they wait for the CPU."""
REST_S = 0.2
"""Mean time between readings of a score above 0; the lowest one counts.

The times are random: a program that writes one guess after the other in a loop of a fixed time would be read at the
same guess.
"""
READINGS_AT_REST, READINGS_WHILE_BUSY = 2, 4
"""Further readings of a score above 0; the second if programs of the desktop are still busy when it is judged."""


class AlreadySolvedError(ConfigError):
    """The untouched start state already scores 1."""


async def judge(
    task: Task,
    desktop: StageableDesktop,
    *,
    milestones: MilestoneTracker | None = None,
    declared_infeasible: bool = False,
    answer: str | None = None,
    timeout_s: float = CHECK_TIMEOUT_S,
    grace_s: float | None = None,
    acted_at: float | None = None,
) -> Outcome:
    """Return the outcome of the end state, as it is `grace_s` after the last action.

    Programs that are still busy then get up to `MAX_BUSY_S` more, so that a slow machine does not change the score.
    The state is judged once, whatever it is worth: were it judged until it is right, a program that writes one guess
    after the other would be paid for the right one. A score above 0 must hold at all further readings.

    `parts` has "end_state" and, with `milestones`, "milestone: NAME" for each. `grace_s` defaults to the task's; with 0
    the state cannot change and is read once. `answer` is the text with which the agent ended. `acted_at`
    is the `time.monotonic()` of the agent's last action; None: it has not acted, and the grace period begins now.
    Raises only cancellation.
    """
    function, worth = task.check, 1.0
    if declared_infeasible and task.infeasible_reward is not None:
        if task.infeasible_check is None:
            return Scored(task.infeasible_reward, {"end_state": task.infeasible_reward})
        function, worth = task.infeasible_check, task.infeasible_reward
    elif task.accepted_answers and not is_accepted(answer, task.accepted_answers):
        given = "no answer" if answer is None else repr(answer)
        return _scored(
            CheckResult(0.0, findings=(Finding("the answer", 0.0, given, task.accepted_answers[0]),)), milestones
        )
    timeout_s = task.check_timeout_s or timeout_s
    grace_s = grace_s if grace_s is not None else SETTLE_GRACE_S if task.settle_grace_s is None else task.settle_grace_s
    now = time.monotonic()
    try:
        await asyncio.sleep((now if acted_at is None else acted_at) + grace_s - now)
        readings = READINGS_AT_REST if grace_s > 0 else 0
        if grace_s > 0 and isinstance(desktop, HasProgramList) and not await desktop.wait_until_idle(MAX_BUSY_S):
            readings = READINGS_WHILE_BUSY
        check = await _run_check_repeatedly(task.id, "check", function, desktop, timeout_s, readings=readings)
    except GuestFailure as failure:
        if acted_at is None:
            return Errored("infrastructure", str(failure))
        return broken_by_agent(failure, milestones)
    except InfrastructureError as error:
        return Errored("infrastructure", str(error))
    except EvaluatorError as error:
        return Errored("evaluator", str(error))
    return _scored(replace(check, value=worth * check.value), milestones)


def judge_seconds(task: Task) -> float:
    """Return the least seconds from the last action to an outcome above 0."""
    grace_s = SETTLE_GRACE_S if task.settle_grace_s is None else task.settle_grace_s
    return grace_s + READINGS_AT_REST * REST_S / 2 * (grace_s > 0)


def is_accepted(answer: str | None, accepted: tuple[str, ...]) -> bool:
    """Return whether an answer is one of `accepted`, without case, outer white space, quotes and a final period."""

    def plain(text: str) -> str:
        return " ".join(text.casefold().split()).removesuffix(".").strip("\"'`").removesuffix(".")

    return answer is not None and plain(answer) in map(plain, accepted)


def ending(ops: Iterable[Op]) -> dict[str, Any]:
    """Return how an agent ends with these ops, as arguments of `judge`."""
    last = next((op for op in reversed(list(ops)) if isinstance(op, TERMINAL_OPS)), None)
    return {"declared_infeasible": isinstance(last, Fail), "answer": last.text if isinstance(last, Answer) else None}


def broken_by_agent(failure: GuestFailure, milestones: MilestoneTracker | None = None) -> Scored:
    """Return the outcome of an episode in which the agent acted and the guests then broke their desktop."""
    return _scored(CheckResult(0.0, findings=(Finding("the desktop", 0.0, str(failure), "works"),)), milestones)


def _scored(check: CheckResult, milestones: MilestoneTracker | None) -> Scored:
    parts = {"end_state": check.value}
    guest_trusted = check.untrusted_source
    if milestones is not None:
        parts |= {f"milestone: {name}": value for name, value in milestones.reached.items()}
        guest_trusted = guest_trusted or milestones.guest_trusted
    findings = check.findings[:MAX_FINDINGS] or (Finding("end state", check.value, check.detail),)
    return Scored(check.value, parts, guest_trusted, findings)


async def start_value(task: Task, desktop: StageableDesktop, *, timeout_s: float = CHECK_TIMEOUT_S) -> float:
    """Return what the untouched start state scores, without milestones. It is judged once for a `Task`, because all of
    its episodes start alike.

    A check that cannot judge the start state, for example because a file is missing, gives 0. Raises
    `AlreadySolvedError` if the value is 1, and `InfrastructureError`.
    """
    if task.start.value is None:
        check = task.start_check or task.check
        try:
            task.start.value = (
                await _run_check(task.id, "check", check, desktop, task.check_timeout_s or timeout_s)
            ).value
        except EvaluatorError:
            return 0.0
    return _unsolved(task, task.start.value)


def _unsolved(task: Task, value: float) -> float:
    if value >= 1.0:
        raise AlreadySolvedError(
            f"task {task.id}: the start state already scores {value:g}; change the setup or the check"
        )
    return value


async def initial_score(task: Task, desktop: StageableDesktop, *, timeout_s: float = CHECK_TIMEOUT_S) -> float:
    """Return the score of the untouched start state, reached milestones included.

    Raises `AlreadySolvedError` if it is 1, and `EvaluatorError` or `InfrastructureError` if a check fails.
    """
    check = task.start_check or task.check
    value = (await _run_check(task.id, "check", check, desktop, task.check_timeout_s or timeout_s)).value
    tracker = MilestoneTracker(task, timeout_s=timeout_s)
    return _unsolved(task, max(value, min(await tracker.after_step(desktop), MILESTONE_CAP)))


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

        More than before counts if it holds at further readings: else a program that writes one guess after the other
        would have a chance in every step. Raises `EvaluatorError` or `InfrastructureError`.
        """
        for milestone in self._task.milestones:
            due = all(self.reached[name] >= 1.0 for name in milestone.after)
            if due and self.reached[milestone.name] < 1.0:
                where = f"milestone {milestone.name!r}"
                arguments = self._task.id, where, milestone.check, desktop, self._timeout_s
                check = await _run_check_repeatedly(*arguments, above=self.reached[milestone.name])
                self.reached[milestone.name] = max(self.reached[milestone.name], check.value)
                self.guest_trusted = self.guest_trusted or (check.untrusted_source and check.value > 0)
        return self.reached_share


async def _run_check_repeatedly(
    task_id: str,
    where: str,
    function: CheckFunction,
    desktop: StageableDesktop,
    timeout_s: float,
    *,
    above: float = 0.0,
    readings: int = READINGS_AT_REST,
) -> CheckResult:
    """Run a check like `_run_check`; a value above `above` is read `readings` times more, and the lowest one counts."""
    lowest = await _run_check(task_id, where, function, desktop, timeout_s)
    for _ in range(readings):
        if lowest.value <= above or lowest.no_retry:
            break
        await asyncio.sleep(REST_S * random.uniform(0.5, 1.5))
        again = await _run_check(task_id, where, function, desktop, timeout_s)
        lowest = min(lowest, again, key=lambda each: each.value)
    return lowest


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
