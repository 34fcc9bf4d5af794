"""What the runs on MiniWoB++ are held to, and that no task is both trained and never trained."""

from dataclasses import replace

import pytest

from benchmarks import miniwob
from benchmarks.learning import Outcome
from benchmarks.thresholds import ROOT, Thresholds
from deskhand.config.load import load_config
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import Proportion
from deskhand.tasks.suites.miniwob.solutions import STEPS

TASKS = [f"miniwob/task-{number}" for number in range(22)]


def report(hits: int) -> EvalReport:
    rate = Proportion(22 * hits, 220)
    return EvalReport("r", rate, {task: Proportion(hits, 10) for task in TASKS}, rate, rate.value)


GOOD = Outcome("seed 0", report(4), report(7), 40, 2000, 60.0, 3000.0, 3300.0, 1200.0)
RANDOM = dict.fromkeys(TASKS, Proportion(1, 10))


def missed(found: Outcome, random: dict[str, Proportion] = RANDOM) -> list[str]:
    thresholds = Thresholds()
    miniwob.judge([found], random, thresholds)
    return thresholds.missed


def test_each_threshold_can_be_missed():
    assert missed(GOOD) == []
    assert missed(replace(GOOD, after=report(5))) == ["seed 0: gain from rewards"]
    assert missed(replace(GOOD, training_s=3601.0)) == ["seed 0: RL"]
    lucky = RANDOM | dict.fromkeys(TASKS[:3], Proportion(4, 10))
    assert missed(GOOD, lucky) == ["tasks above chance after demonstrations"]


@pytest.mark.parametrize("profile", ["sft", None])
def test_trained_tasks_have_an_oracle_and_none_is_held_out(profile):
    config = load_config(ROOT / miniwob.CONFIG, profile=profile)
    trained = {name.removeprefix("miniwob/") for name in config.suite.families}
    assert trained <= STEPS.keys()
    assert not trained & {name.removeprefix("miniwob/") for name in miniwob.NEVER_TRAINED}
    per_task = miniwob.EPISODES_PER_TASK["full"]
    assert config.evaluation.num_episodes == per_task * len(trained), "as many of each task as chance is measured with"
    assert config.policy.train_vision == (profile == "sft")
