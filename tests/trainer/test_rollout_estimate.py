"""Estimate of episodes per minute: every part counts, and the demo's rate is within twice of what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deskhand.config.load import load_config
from deskhand.models.architectures import values_of
from deskhand.recipes import plan
from deskhand.trainer.memory_estimate import Workload
from deskhand.trainer.rollout_estimate import RolloutEstimate, estimate_rollout
from deskhand.trainer.throughput_estimate import Device, ThroughputEstimate, estimate_throughput

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
WORK = Workload(320, 256, 320, 80, 3, 3, 400, 20, 48, 48, 144, judge_s=0.7)
SPEED = ThroughputEstimate(1e9, 5000.0, 10.0, 1000.0, "", prefill_s=2.0, vision_s=4.0, token_s=0.01)
MACHINE = Device("cpu", 0.0, 0.21e12, 48e9)
"""Two cores of an AMD EPYC."""
MEASURED = 232.0
"""Episodes per minute of the demo on it, without further desktops for judging; 2.6 turns and 4.9 tokens a reply."""


def estimate(work: Workload = WORK, speed: ThroughputEstimate = SPEED, requests: int = 8, **changes) -> RolloutEstimate:
    settings = {"num_judging": 0, "on_cpu": True, "own_engine": True, "threads": 1, "cores": 2, **changes}
    return estimate_rollout(work, speed, requests, **settings)


@pytest.mark.parametrize("name", ["prefill_s", "vision_s", "token_s", "step_s"])
def test_prefill_screenshots_replies_and_training_each_cost_episodes(name: str) -> None:
    slower = estimate(speed=replace(SPEED, **{name: 3 * getattr(SPEED, name)})).per_minute
    assert all(after < before for before, after in zip(estimate().per_minute, slower, strict=True)), name


def test_the_slowest_part_decides_when_all_run_at_once_and_the_sum_when_one_waits_for_the_other() -> None:
    made = estimate()
    assert made.slowest == ("engine and trainer", made.engine_s + made.trainer_s)
    assert made.per_minute[1] == pytest.approx(60 * 48 / (made.engine_s + 10.0))
    assert made.per_minute[0] == pytest.approx(60 * 48 / (made.engine_s + 10.0 + made.desktops_s))
    assert estimate(requests=1).slowest[0] == "desktops"
    assert estimate(cores=1).slowest[0] == "processor"
    alone = estimate(on_cpu=False, own_engine=False, requests=32, cores=16)
    assert alone.slowest == ("engine and trainer", 10.0), "the trainer alone"


def test_a_reply_that_takes_longer_fills_the_batches() -> None:
    batches = [estimate(replace(WORK, reply_tokens=count)).mean_batch for count in (1, 20, 200, 20000)]
    assert batches == sorted(batches)
    assert batches[0] == 1.0
    assert 7 < batches[-1] <= 8


def test_the_judge_costs_only_the_desktops_that_no_other_episode_replaces() -> None:
    seconds = [estimate(num_judging=count).desktops_s for count in (0, 2, 4, 8, 100)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[1] > seconds[2]
    assert seconds[-1] == pytest.approx(estimate(replace(WORK, judge_s=0.0)).desktops_s)


def test_the_demos_rate_is_within_twice_of_what_was_measured() -> None:
    config = load_config(CONFIGS / "tiny_cpu.yaml")
    made = plan.plan(config, turns=3, reply_tokens=5)
    speed = estimate_throughput(
        values_of(config.model), config.policy, config.trainer, "float32", 8, made.memory, made.work, MACHINE,
        in_process=True,
    )  # fmt: skip
    assert made.work.judge_s == pytest.approx(0.7)
    least, most = estimate(made.work, speed).per_minute
    assert MEASURED / 2 <= least <= most <= 2 * MEASURED


def test_the_command_prints_the_rate() -> None:
    made = plan.plan(load_config(CONFIGS / "tiny_cpu.yaml"))
    assert made.rollout is not None
    assert made.data()["rollout"]["episodes_per_minute"] == made.rollout.per_minute
    assert any(line.startswith("episodes per minute: ") for line in made.lines())


def test_desktops_of_other_machines_have_no_rate() -> None:
    config = load_config(CONFIGS / "tiny_cpu.yaml", ["desktop.backend=server", "desktop.urls=[http://127.0.0.1:1]"])
    made = plan.plan(config)
    assert made.rollout is None
    assert made.data()["rollout"] is None
