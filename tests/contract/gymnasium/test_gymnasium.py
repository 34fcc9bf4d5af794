"""Gymnasium's own checks and vector environments on real local desktops, and outages that are no reward of 0."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from environments import ROOT, packages_of

from deskhand.actions.ops import Click, Done, Drag, Fail, Key, KeyDown, Op, Point, Scroll, Type, Wait, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import AgentError, ConfigError, EvaluatorError, InfrastructureError
from deskhand.tasks.suites.basics import make_task

FAMILIES = ["suite.families=[terminal_run]", "desktop.prewarm=0"]
DONE = '{"op":"done"}'


@pytest.fixture(scope="module")
def gym() -> Any:
    import gymnasium

    import deskhand.integrations.gymnasium  # noqa: F401 - registers

    return gymnasium


@pytest.fixture(scope="module")
def env(gym) -> Iterator[Any]:
    made = gym.make("Deskhand-v0", overrides=FAMILIES, render_mode="rgb_array")
    yield made
    made.close()


def test_gymnasiums_own_check_accepts_the_environment(env):
    from gymnasium.utils.env_checker import check_env

    check_env(env.unwrapped)


def test_random_actions_play_until_the_step_limit(env):
    observation, info = env.reset(seed=3)
    assert observation in env.observation_space
    env.action_space.seed(3)
    ends = {"done", "fail", "answer"}
    names = [name for name in _names() if name not in ends]
    steps, more = list[tuple[float, bool, bool]](), dict[str, Any]()
    while not steps or not any(steps[-1][1:]):
        action = env.action_space.sample() | {"op": _names().index(names[len(steps) % len(names)]), "text": "x"}
        action["seconds"] = np.zeros(1, np.float32)
        observation, reward, terminated, truncated, more = env.step(action)
        assert observation in env.observation_space
        steps.append((reward, terminated, truncated))
    assert len(steps) == info["max_steps"]
    assert steps[-1] == (0.0, False, True)
    assert more["stop_reason"] == "max_steps"
    with pytest.raises(ConfigError, match="call reset"):
        env.step(env.action_space.sample())


def _names() -> tuple[str, ...]:
    from deskhand.integrations.gymnasium.actions import OP_NAMES

    return OP_NAMES


def test_the_oracles_ops_as_structured_actions_are_rewarded_at_the_end(env):
    from deskhand.integrations.gymnasium.actions import action_of

    _, info = env.reset(options={"family": "terminal_run", "variant": 5})
    assert info["instruction"]
    base = env.unwrapped._session
    oracle = base.episode.task.oracle(_staged(base))
    rewards, more, terminated, truncated = list[float](), dict[str, Any](), False, False
    while not (terminated or truncated):
        for op in base._loop.run(_next(oracle)):
            _, reward, terminated, truncated, more = env.step(action_of(op))
            rewards.append(reward)
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
    assert (terminated, truncated, more["success"]) == (True, False, True)
    assert (env.render() == base.episode.frame.rgb()).all()


def _staged(env: Any) -> StageableDesktop:
    return env.episode.context.desktop.judged


async def _next(oracle: AsyncIterator[list[Op]]) -> list[Op]:
    return await anext(oracle)


def test_the_same_seed_is_the_same_task_and_another_is_another(env):
    tasks = [env.reset(seed=seed)[1]["task_id"] for seed in (7, 7, 8)]
    assert tasks[0] == tasks[1] != tasks[2]
    with pytest.raises(ConfigError, match="options"):
        env.reset(options={"famly": "x"})


def test_tasks_with_several_screen_sizes_are_refused(gym):
    with pytest.raises(ConfigError, match=r"suite.families: the tasks have screens of 256x192 \(.*\), 320x"):
        gym.make("Deskhand-v0", overrides=["suite.name=basics"])


async def _broken_check(desktop: StageableDesktop) -> Any:
    raise RuntimeError("the check is broken")


async def _broken_setup(desktop: StageableDesktop) -> None:
    raise InfrastructureError("no desktop today")


@pytest.mark.parametrize("on_outage", ["raise", "truncate"])
def test_an_outage_is_never_a_reward_of_zero(gym, on_outage):
    env = gym.make("Deskhand-v0", overrides=FAMILIES, on_outage=on_outage)
    base = env.unwrapped._session
    try:
        broken = replace(make_task("terminal_run", 3), check=_broken_check)
        base.task = lambda family, variant: broken
        env.reset()
        if on_outage == "raise":
            with pytest.raises(EvaluatorError, match="the check is broken"):
                env.step(Done())
        else:
            _, reward, terminated, truncated, info = env.step(Done())
            assert math.isnan(reward)
            assert (terminated, truncated, info["cause"]) == (False, True, "evaluator")
            assert "the check is broken" in info["outage"]
        base.task = lambda family, variant: replace(broken, setup=_broken_setup)
        with pytest.raises(InfrastructureError, match="no desktop today"):
            env.reset()
    finally:
        env.close()


def test_an_invalid_reply_is_a_step_with_an_error_and_three_end_the_episode(gym):
    env = gym.make("Deskhand-v0", overrides=FAMILIES, action_format="deskhand_json", observe_instruction=True)
    try:
        observation, info = env.reset(seed=1)
        assert observation["instruction"] == info["instruction"]
        assert observation in env.observation_space
        seen = [env.step(text) for text in ("click somewhere", '{"op":"fly"}', "c")]
        assert all(each[4]["error"] for each in seen)
        assert [each[2] for each in seen] == [False, False, True]
        assert (seen[-1][1], seen[-1][4]["stop_reason"]) == (0.0, "too_many_errors")
        env.reset(seed=1)
        assert env.step("c")[4]["error"]
        assert "error" not in env.step('{"op":"wait","seconds":0}')[4], "an error is that of its own step"
    finally:
        env.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_two_desktops_are_one_vector_environment(gym, kind):
    made = gym.make_vec(
        "Deskhand-v0", num_envs=2, vectorization_mode=kind, overrides=FAMILIES, action_format="deskhand_json"
    )
    try:
        observations, infos = made.reset(seed=1)
        assert observations.shape == (2, *made.single_observation_space.shape)
        assert infos["task_id"][0] != infos["task_id"][1]
        _, rewards, terminated, truncated, infos = made.step(('{"op":"wait","seconds":0}', DONE))
        assert terminated.tolist() == [False, True]
        assert (rewards.tolist(), truncated.tolist()) == ([0.0, 0.0], [False, False])
        assert infos["stop_reason"][1] == "done"
    finally:
        made.close()


def test_the_example_plays_two_desktops():
    path = f"{ROOT}:{packages_of('gymnasium')}"
    words = [sys.executable, str(ROOT / "examples" / "gymnasium_desktop.py"), "6"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "(2, 192, 256, 3)" in done.stdout
    assert "episodes ended, rewards [" in done.stdout


AT = Point(640, 360, screen_px(1280, 720))


@pytest.mark.parametrize(
    "op",
    [Click(AT, "right", 2, ("ctrl", "alt")), Drag((AT, Point(0, 719, AT.space)), "middle"), Scroll(-2, 3, AT),
     Type("grüße\n"), Key(("ctrl", "shift", "t")), KeyDown("f5"), Wait(0.5), Fail("no such file"), Done()],
)  # fmt: skip
def test_an_op_is_its_structured_action(op):
    from deskhand.actions.serialization import op_to_json
    from deskhand.integrations.gymnasium.actions import action_of, op_of

    assert op_to_json(op_of(action_of(op)), 1280, 720) == op_to_json(op, 1280, 720)


@pytest.mark.parametrize(
    "op", [Click(None), Drag((AT, AT, AT)), Key(("a", "b")), Wait(60), Type("x" * 513), Key(("shift", "ctrl", "t"))]
)
def test_an_op_outside_the_space_is_refused_and_not_changed(op):
    from deskhand.integrations.gymnasium.actions import action_of

    with pytest.raises(AgentError):
        action_of(op)
