"""The judge: a failing check or desktop never becomes a score."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from patience import limit

from deskhand.errors import AgentError, ConfigError, EvaluatorError, GuestFailure, InfrastructureError
from deskhand.tasks.judge import MilestoneTracker, initial_score, judge
from deskhand.tasks.outcome import Errored, Finding, Scored, dense_reward
from deskhand.tasks.task import CheckFunction, CheckResult, Milestone, Task


def value_of(key: str, guest_trusted: bool = False) -> CheckFunction:
    """A check that reads one number of the desktop, which in this file is a dict."""

    async def check(desktop: dict[str, float]) -> CheckResult:
        return CheckResult(desktop[key], untrusted_source=guest_trusted)

    return check


def raising(error: BaseException) -> CheckFunction:
    async def check(_: dict[str, float]) -> CheckResult:
        raise error

    return check


def make(check: CheckFunction, *milestones: Milestone) -> Task:
    async def setup(_: object) -> None:
        return None

    return Task(id="t/f/0", instruction="do it", setup=setup, check=check, milestones=milestones)


async def test_the_value_of_the_check_is_the_score_and_guest_trust_is_kept() -> None:
    outcome = await judge(make(value_of("end", guest_trusted=True)), {"end": 0.25}, grace_s=0)
    assert outcome == Scored(0.25, {"end_state": 0.25}, guest_trusted=True)


async def test_a_program_that_is_still_writing_is_waited_for() -> None:
    desktop = {"end": 0.0}
    judging = asyncio.create_task(judge(make(value_of("end")), desktop))
    await asyncio.sleep(0.15)
    desktop["end"] = 1.0
    assert await judging == Scored(1.0, {"end_state": 1.0})
    desktop["end"] = 0.5
    assert await judge(make(value_of("end")), desktop, grace_s=0.2) == Scored(0.5, {"end_state": 0.5})


@pytest.mark.parametrize("grace_s", [0.0, 0.3])
async def test_a_state_is_judged_at_a_time_that_does_not_depend_on_its_value(grace_s: float) -> None:
    """Judging until the state is right would pay a program that writes one guess after the other."""
    loop = asyncio.get_running_loop()
    read_at: dict[float, list[float]] = {0.0: [], 1.0: []}

    for value, times in read_at.items():
        began = loop.time()

        async def check(_: object, value: float = value, times: list[float] = times, began: float = began):
            times.append(loop.time() - began)
            return CheckResult(value)

        outcome = await judge(make(check), {}, grace_s=grace_s, acted_at=time.monotonic())
        assert isinstance(outcome, Scored)
        assert outcome.value == value
    assert len(read_at[0.0]) == 1
    assert all(times[0] >= grace_s for times in read_at.values())


async def test_the_time_since_the_last_action_counts_for_the_grace_period() -> None:
    async with asyncio.timeout(limit(5)):
        await judge(make(value_of("end")), {"end": 0.0}, grace_s=60.0, acted_at=time.monotonic() - 61)


@pytest.mark.parametrize("right", range(5))
async def test_a_state_that_keeps_changing_is_worth_its_worst(right: int) -> None:
    reads = iter(range(100))

    async def guesses(_: object) -> CheckResult:
        return CheckResult(float(next(reads) % 5 == right))

    assert await judge(make(guesses), {}, grace_s=0.3) == Scored(0.0, {"end_state": 0.0})


class BusyDesktop:
    """A desktop with a program that never rests."""

    async def running_programs(self) -> dict[int, bool | None]:
        return {}

    async def exit_codes(self) -> dict[int, int]:
        return {}

    async def wait_until_idle(self, timeout_s: float) -> bool:
        return False


async def test_a_writer_in_step_with_the_judge_is_not_paid() -> None:
    """The right one of twenty guesses is there again after 0.2 s, the mean time between two readings."""
    for _ in range(12):
        began = float("nan")

        async def guesses(_: object) -> CheckResult:
            nonlocal began
            began = time.monotonic() if began != began else began
            return CheckResult(float((time.monotonic() - began) % 0.2 < 0.2 / 20))

        assert await judge(make(guesses), BusyDesktop(), grace_s=0.01) == Scored(0.0, {"end_state": 0.0})


async def test_what_the_agent_broke_is_a_zero_and_what_broke_by_itself_an_outage() -> None:
    broken = make(raising(GuestFailure("l3afpad was killed by SIGSEGV")), Milestone("a", 0.2, value_of("a")))
    tracker = MilestoneTracker(broken)
    await tracker.after_step({"a": 1})
    outcome = await judge(broken, {}, milestones=tracker, grace_s=0, acted_at=time.monotonic())
    assert outcome == Scored(0.0, {"end_state": 0.0, "milestone: a": 1.0})
    assert isinstance(outcome, Scored)
    assert outcome.failed == (Finding("the desktop", 0.0, "l3afpad was killed by SIGSEGV", "works"),)
    assert await judge(broken, {}, grace_s=0) == Errored("infrastructure", "l3afpad was killed by SIGSEGV")


async def test_an_outage_is_an_infrastructure_error_and_never_zero() -> None:
    outcome = await judge(make(raising(InfrastructureError("desktop 3 is gone"))), {})
    assert outcome == Errored("infrastructure", "desktop 3 is gone")


ERRORS = (KeyError("x"), AgentError("off the screen"), OSError("disk"), TimeoutError("slow"))


@pytest.mark.parametrize("error", [*ERRORS, float("nan"), float("inf"), -0.1, 1.5])
async def test_a_raising_check_or_invalid_value_is_an_evaluator_error_with_task_and_cause(
    error: Exception | float,
) -> None:
    is_value = isinstance(error, float)
    outcome = await judge(make(value_of("end") if is_value else raising(error)), {"end": error})
    assert isinstance(outcome, Errored)
    assert outcome.cause == "evaluator"
    assert "t/f/0" in outcome.message
    assert ("a value in [0, 1]" if is_value else type(error).__name__) in outcome.message


async def test_a_check_that_hangs_is_an_evaluator_error_within_its_limit() -> None:
    async def hang(_: object) -> CheckResult:
        await asyncio.sleep(30)
        return CheckResult(1.0)

    async with asyncio.timeout(limit(5)):
        outcome = await judge(make(hang), {}, timeout_s=0.05)
    assert isinstance(outcome, Errored)
    assert outcome.cause == "evaluator"
    assert "longer than" in outcome.message


async def test_cancelling_the_episode_cancels_the_judge() -> None:
    started = asyncio.Event()

    async def hang(_: object) -> CheckResult:
        started.set()
        await asyncio.sleep(30)
        return CheckResult(1.0)

    judging = asyncio.create_task(judge(make(hang), {}))
    await started.wait()
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging


async def test_milestones_keep_their_maximum_and_are_reported_in_the_parts() -> None:
    task = make(value_of("end"), Milestone("a", 0.2, value_of("a")), Milestone("b", 0.3, value_of("b")))
    tracker = MilestoneTracker(task)
    assert await tracker.after_step({"a": 0, "b": 0}) == 0
    assert await tracker.after_step({"a": 1, "b": 0.5}) == pytest.approx(0.35)
    assert await tracker.after_step({"a": 0, "b": 0}) == pytest.approx(0.35)
    outcome = await judge(task, {"end": 0}, milestones=tracker, grace_s=0)
    assert isinstance(outcome, Scored)
    assert outcome.parts == {"end_state": 0.0, "milestone: a": 1.0, "milestone: b": 0.5}
    assert dense_reward(outcome.value, tracker.reached_share) == pytest.approx(0.35)


async def test_a_milestone_counts_only_once_those_before_it_were_reached() -> None:
    task = make(value_of("end"), Milestone("a", 0.2, value_of("a")), Milestone("b", 0.3, value_of("b"), ("a",)))
    tracker = MilestoneTracker(task)
    assert await tracker.after_step({"a": 0.5, "b": 1}) == pytest.approx(0.1)
    assert await tracker.after_step({"a": 1, "b": 0}) == pytest.approx(0.2)
    assert await tracker.after_step({"a": 0, "b": 1}) == pytest.approx(0.5)
    for milestones in (tuple(reversed(task.milestones)), (Milestone("a", 0.2, value_of("a"), ("a",)),)):
        with pytest.raises(ConfigError, match="must name earlier ones"):
            MilestoneTracker(replace(task, milestones=milestones))


@pytest.mark.parametrize("right", range(5))
async def test_a_program_that_writes_one_guess_after_the_other_reaches_no_milestone(right: int) -> None:
    reads = iter(range(100))

    async def guesses(_: object) -> CheckResult:
        return CheckResult(float(next(reads) % 5 == right))

    tracker = MilestoneTracker(make(value_of("end"), Milestone("a", 0.4, guesses)))
    for _ in range(10):
        assert await tracker.after_step({}) == 0.0


async def test_a_milestone_that_holds_is_read_again_once() -> None:
    """A step costs further readings only if the milestone was not reached before."""
    reads: list[float] = []

    async def half(_: object) -> CheckResult:
        reads.append(0.5)
        return CheckResult(0.5)

    tracker = MilestoneTracker(make(value_of("end"), Milestone("a", 0.4, half)))
    for _ in range(3):
        assert await tracker.after_step({}) == pytest.approx(0.2)
    assert len(reads) == 5


async def test_a_failing_milestone_raises_the_cause() -> None:
    with pytest.raises(EvaluatorError, match="milestone 'a'"):
        await MilestoneTracker(make(value_of("end"), Milestone("a", 0.2, raising(KeyError("x"))))).after_step({})
    gone = Milestone("a", 0.2, raising(InfrastructureError("gone")))
    with pytest.raises(InfrastructureError):
        await MilestoneTracker(make(value_of("end"), gone)).after_step({})


async def test_milestones_that_hold_at_the_start_are_part_of_the_baseline() -> None:
    task = make(value_of("end"), Milestone("a", 0.2, value_of("a")))
    assert await initial_score(task, {"end": 0.0, "a": 1.0}) == pytest.approx(0.2)
    assert await initial_score(task, {"end": 0.3, "a": 1.0}) == pytest.approx(0.3)


async def test_a_task_that_is_solved_by_doing_nothing_is_invalid() -> None:
    with pytest.raises(ConfigError, match="already scores 1"):
        await initial_score(make(value_of("end")), {"end": 1.0})


async def test_invalid_milestone_weights_and_duplicate_names_are_rejected() -> None:
    good = make(value_of("end"))
    for milestones in (
        (Milestone("a", 0.6, value_of("a")), Milestone("b", 0.6, value_of("b"))),
        (Milestone("a", -0.1, value_of("a")),),
        (Milestone("a", 0.1, value_of("a")), Milestone("a", 0.1, value_of("a"))),
    ):
        with pytest.raises(ConfigError, match="t/f/0"):
            MilestoneTracker(replace(good, milestones=milestones))


async def test_every_outcome_lists_its_clauses() -> None:
    clauses = (Finding("the colour", 1.0, "'red'", "'red'"), Finding("the size", 0.0, "x" * 2000, "12"))

    async def detailed(_: object) -> CheckResult:
        return CheckResult(0.0, "not as asked", findings=clauses)

    outcome = await judge(make(detailed), {}, grace_s=0)
    assert isinstance(outcome, Scored)
    assert outcome.findings == clauses
    assert [finding.clause for finding in outcome.failed] == ["the size"]
    assert outcome.failed[0].read == "x" * 500 + "... (2000 characters)"
    plain = await judge(make(value_of("end")), {"end": 0.5}, grace_s=0)
    assert isinstance(plain, Scored)
    assert plain.failed == (Finding("end state", 0.5, ""),)


async def test_a_check_with_no_retry_runs_once() -> None:
    asked = 0

    async def opinion(_: object) -> CheckResult:
        nonlocal asked
        asked += 1
        return CheckResult(float(asked > 1), no_retry=True)

    assert await judge(make(opinion), {}, grace_s=0.5) == Scored(0.0, {"end_state": 0.0})
    assert asked == 1


async def test_a_task_may_give_its_programs_longer_to_write() -> None:
    began = asyncio.get_running_loop().time()

    async def late(_: object) -> CheckResult:
        return CheckResult(float(asyncio.get_running_loop().time() - began > 1.3))

    assert (await judge(make(late), {})) == Scored(0.0, {"end_state": 0.0})
    began = asyncio.get_running_loop().time()
    assert (await judge(replace(make(late), settle_grace_s=3.0), {})) == Scored(1.0, {"end_state": 1.0})
