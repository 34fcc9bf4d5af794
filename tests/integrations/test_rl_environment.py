"""A loop of one's own over tasks of any kind: the oracle's rollout scores 1, doing nothing 0, and a broken judge is no
0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from deskhand.actions.ops import Done, Fail, Key, Op, Type
from deskhand.desktop.base import Frame, StageableDesktop
from deskhand.errors import AgentError, ConfigError, EvaluatorError, InfrastructureError
from deskhand.integrations.openadapt.rl_environment import Action, ResetConfig, RLEnvironment
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.suites.basics import make_task
from deskhand.tasks.task import CheckResult, Task


async def raising(desktop: StageableDesktop) -> CheckResult:
    raise RuntimeError("the check is broken")


def task_by(task_id: str) -> Task:
    """`terminal_run:3` or, with a check that fails, `broken:3`."""
    family, _, seed = task_id.partition(":")
    if family == "broken":
        return replace(make_task("terminal_run", int(seed)), check=raising)
    return make_task(family, int(seed))


@pytest.fixture(scope="module")
def env() -> Iterator[RLEnvironment]:
    with RLEnvironment(task_by, "terminal_run:3", evaluate_every_step=True) as made:
        yield made


def oracle(env: RLEnvironment) -> Callable[[Frame], Action]:
    """The task's own oracle as an agent: it looks at the desktop of the running episode."""
    playing: list[object] = []

    async def following() -> list[Op]:
        return await anext(playing[0])  # pyright: ignore[reportArgumentType, reportCallIssue]

    def agent(frame: Frame) -> Action:
        if not playing:
            playing.append(env.task.oracle(env._desktop))
        return env._loop.run(following())

    return agent


def test_a_rollout_of_the_oracle_is_rewarded_at_its_end(env: RLEnvironment) -> None:
    steps = env.collect_rollout(oracle(env))
    assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    assert steps[-1].info["stopped"] == "done"
    assert [step.info["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert env.evaluate() == env.evaluate_dense() == 1.0
    assert isinstance(env.outcome(), Scored)


def test_a_rollout_of_nothing_is_worth_nothing(env: RLEnvironment) -> None:
    (step,) = env.collect_rollout(lambda frame: Done(), config=ResetConfig(task_id="terminal_run:4"))
    assert (step.reward, step.done, env.stopped) == (0.0, True, "done")
    steps = env.collect_rollout(lambda frame: '{"type": "wait"}', max_steps=2)
    assert (len(steps), steps[-1].info["stopped"]) == (2, "max_steps")
    steps = env.collect_rollout(lambda frame: Key(("shift",)), stuck_window=2)
    assert (len(steps), steps[-1].info["stopped"]) == (2, "stuck")
    (step,) = env.collect_rollout(lambda frame: [Fail("no")])
    assert (step.reward, step.info["stopped"]) == (0.0, "fail")


def test_what_an_agent_did_wrong_is_no_step_and_can_be_done_again(env: RLEnvironment) -> None:
    env.reset()
    for wrong in ('{"type": "fly"}', "nothing like an action", {"type": "click", "x": 2.0, "y": 0.5}):
        with pytest.raises(AgentError):
            env.step(wrong)
    with pytest.raises(AgentError):
        env.pixel_action(100_000, 5)
    assert env.trajectory == []
    width, height = env.observe().size
    assert env.pixel_action(7, 9).observation.cursor == (7, 9)
    assert env.pixel_action(x_frac=0.5, y_frac=1.0).observation.cursor == (width // 2, height - 1)
    env.reset()
    env.pixel_action(action_type="type", text="ls")
    env.pixel_action(action_type="key", key="Return")
    env.step([Type("a"), Key(("backspace",))])
    assert len(env.trajectory) == 3
    assert all(0.0 <= step.info["milestones"] <= 1.0 for step in env.trajectory)


def test_the_tasks_limit_of_steps_ends_an_episode(env: RLEnvironment) -> None:
    env.reset()
    while not env.step(Key(("shift",))).done:
        pass
    assert (len(env.trajectory), env.stopped) == (env.task.max_steps, "max_steps")
    with pytest.raises(InfrastructureError, match="the episode is over"):
        env.step(Done())


def test_a_failing_check_raises_and_is_errored(env: RLEnvironment) -> None:
    env.reset(ResetConfig(task_id="broken:3"))
    outcome = env.outcome()
    assert isinstance(outcome, Errored)
    assert outcome.cause == "evaluator"
    for ask in (env.evaluate, env.evaluate_dense):
        with pytest.raises(EvaluatorError, match="the check is broken"):
            ask()


def test_there_is_no_episode_before_a_reset_and_none_after_one_that_failed() -> None:
    with RLEnvironment(task_by) as env:
        with pytest.raises(ConfigError, match="no task was named"):
            env.reset()
        for ask in (env.evaluate, lambda: env.step(Done()), lambda: env.pixel_action(1, 1)):
            with pytest.raises(InfrastructureError, match="call reset first"):
                ask()
        with pytest.raises(ConfigError):
            env.reset(ResetConfig(task_id="no_such_family:1"))
        with pytest.raises(InfrastructureError, match="call reset first"):
            env.step(Done())
    with pytest.raises(InfrastructureError, match="closed"):
        env.reset(ResetConfig(task_id="terminal_run:1"))


def test_it_works_beside_a_running_event_loop() -> None:
    async def main() -> float:
        with RLEnvironment(task_by, "terminal_run:5") as env:
            env.reset()
            return env.evaluate()

    assert asyncio.run(main()) == 0.0
