"""TRL's real GRPOTrainer plays, rewards and trains on real desktops; an outage is never a reward of 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environments import ROOT, packages_of
from training_fixture import checkpoint

from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError, EvaluatorError
from deskhand.integrations.trl.environment import OVER, TrlDesktop
from deskhand.tasks.suites.basics import make_task

REWARD = """
import deskhand

@deskhand.reward
def steps(episode):
    return 0.25 * len(episode.steps)
"""


def test_trls_trainer_plays_rewards_and_updates(tmp_path):
    (tmp_path / "steps_reward.py").write_text(REWARD)
    words = [checkpoint(tmp_path / "checkpoint"), tmp_path / "out", f"{tmp_path}/steps_reward.py:steps"]
    script = Path(__file__).with_name("train_with_trl.py")
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT}:{packages_of('trl')}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"), "TRL_EXPERIMENTAL_SILENCE": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script), *map(str, words)],
        capture_output=True, text=True, check=False, env=environment, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    replies = [reply for reply, _ in found["turns"]]
    assert ["click" in replies[0], "finish" in replies[1], "finish" in replies[2]] == [True] * 3, replies
    log = found["log"]
    print(f"\nTRL: reward {log['reward']}, gradient norm {log['grad_norm']}, {len(found['changed'])} tensors changed")
    assert log["reward"] == pytest.approx((0.5 + 0.25) / 2), "one step and two"
    assert log["grad_norm"] > 0
    assert any("visual" in name for name in found["changed"]), "the vision tower is trained on the screens"
    assert any("language_model" in name for name in found["changed"])


@pytest.fixture
def env() -> Iterator[TrlDesktop]:
    made = TrlDesktop(overrides=["suite.families=[terminal_run]", "desktop.prewarm=0"])
    yield made
    made._close()


def test_the_tools_solve_a_task_and_the_judge_pays(env):
    shown, said = env.reset(family="terminal_run", variant=5, prompt="ignored")
    assert shown["image"].size == (256, 192)
    session = env._session
    oracle = session.episode.task.oracle(session.episode.context.desktop.judged)  # pyright: ignore[reportAttributeAccessIssue]

    async def following() -> list[Any]:
        return await anext(oracle)  # pyright: ignore[reportArgumentType]

    while session.is_running:
        for op in session._loop.run(following()):  # pyright: ignore[reportOptionalMemberAccess]
            env._act(op)
    assert said["text"] == session.episode.context.instruction
    assert env.get_reward() == 1.0
    assert env.click(1, 1) == [{"type": "text", "text": OVER}]


def test_an_episode_without_a_finish_is_judged_and_a_wrong_call_is_explained(env):
    env.reset(variant=6)
    assert "error" in env.click(2000, 5)[-1]["text"]
    assert "button" in env.click(5, 5, "left-ish")[0]["text"]
    assert env.get_reward() == 0.0
    with pytest.raises(ConfigError, match="family"):
        env.reset(family="no_such_family")


async def broken(desktop: StageableDesktop) -> Any:
    raise RuntimeError("the check is broken")


def test_an_outage_raises_and_is_no_reward(env):
    env._session.task = lambda family, variant: replace(make_task("terminal_run", 3), check=broken)
    env.reset()
    with pytest.raises(Exception, match="the check is broken"):
        env.finish()
    with pytest.raises(EvaluatorError, match="the check is broken"):
        env.get_reward()
