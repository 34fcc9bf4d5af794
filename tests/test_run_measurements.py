"""A run against its estimate: the first step of a process is left out, and the run's own episodes are estimated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import called

from deskhand.config.load import load_config
from deskhand.errors import ConfigError
from deskhand.recipes import plan
from deskhand.recipes.run_measurements import RunMeasurements
from deskhand.store.run import Run

CONFIG = Path(__file__).parent.parent / "configs" / "tiny_cpu.yaml"


def step(elapsed_s: float, seconds: float, trained_before: int, **changes: Any) -> dict[str, Any]:
    """Metrics of a step that trained 48 of 60 episodes of 2.5 turns."""
    found = {
        "time/elapsed": elapsed_s,
        "time/step": seconds,
        "episodes/completed": 60,
        "episodes/trained": trained_before,
        "replies/completed": 150,
        "replies/mean_tokens": 5.0,
        "train/computed_tokens": 9600,
        "perf/trainer_tokens_per_s": 2400.0,
        "time/train_step": 4.0,
        "time/episode_setup": 0.5,
        "time/episode_solve": 1.0,
        "time/episode_model": 0.7,
        "time/episode_judge": 0.6,
        "engine/images_encoded": 90,
        "engine/decoded_tokens": 750,
        "time/engine_vision": 3.0,
        "time/engine_prefill": 2.0,
        "time/engine_decode": 2.5,
        "memory/peak_mib_total": 900.0,
    }
    return {**found, **changes}


METRICS = [
    step(40.0, 40.0, 0),
    step(50.0, 10.0, 48),
    step(64.0, 14.0, 96, **{"memory/peak_mib_total": 1100.0}),
    step(30.0, 30.0, 144),  # resumed
    step(42.0, 12.0, 192),
]


def test_the_first_step_of_each_process_is_left_out() -> None:
    found = RunMeasurements.of(METRICS)
    assert found.seconds == pytest.approx(12.0)
    assert (found.played, found.trained) == (60, 48)
    assert found.peaks == {"memory/peak_mib_total": 1100.0}
    assert RunMeasurements.of(METRICS[:1]).seconds == 40.0
    with pytest.raises(ConfigError, match="no finished training step"):
        RunMeasurements.of([])


def test_rates_are_of_the_episodes_that_were_played_and_memory_is_of_the_longest() -> None:
    config = load_config(CONFIG)
    plain, made = plan.plan(config), plan.plan(config, measured=RunMeasurements.of(METRICS))
    assert made.memory.total() == plain.memory.total()
    assert plain.rollout is not None
    assert made.rollout is not None
    assert made.rollout.episodes == 60
    assert made.rollout.per_minute > plain.rollout.per_minute
    work = RunMeasurements.of(METRICS).workload(made.work, config.trainer)
    assert (work.turns, work.reply_tokens, work.row_tokens) == pytest.approx((2.5, 5.0, 200.0))
    assert work.step_images == pytest.approx(90 * 48 / 60)


def test_each_figure_is_printed_with_its_ratio() -> None:
    made = plan.plan(load_config(CONFIG), measured=RunMeasurements.of(METRICS))
    found = {each.name: each for each in made.compared}
    assert made.rollout is not None
    rate = found["episodes per minute"]
    assert rate.measured == pytest.approx(60 * 60 / 12.0)
    assert rate.ratio == pytest.approx(300.0 / made.rollout.per_minute)
    assert (found["judge"].measured, found["desktop"].measured) == pytest.approx((0.6, 0.8))
    assert (found["trained"].measured, found["sampled while decoding"].measured) == pytest.approx((2400.0, 300.0))
    assert found["peak of the process"].measured == 1100.0
    phases = {"training", "engine vision", "engine prefill", "engine decode", "model", "step"}
    assert phases < found.keys()
    lines = list(made.lines())
    assert all(any(line.startswith(each.name) for line in lines) for each in made.compared)
    assert [each["ratio"] for each in made.data()["compared"]] == [each.ratio for each in made.compared]


def test_a_gpus_peak_is_that_of_tensors_alone() -> None:
    metrics = [{**each, "memory/device_peak_mib": 2000.0} for each in METRICS]
    made = plan.plan(load_config(CONFIG, ["device=cuda:0"]), gpu="H100", measured=RunMeasurements.of(metrics))
    found = {each.name: each for each in made.compared}
    outside = sum(term.bytes for term in made.memory.terms if term.name in ("allocator", "CUDA"))
    assert outside > 0
    assert found["peak of the GPU's tensors"].estimated == pytest.approx((made.memory.total() - outside) / 2**20)
    assert found["peak of the process"].estimated == pytest.approx(made.memory.total("host") / 2**20)


def test_a_run_without_steps_and_a_profile_of_a_run_are_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    Run.create(folder, {"config": load_config(CONFIG).model_dump(mode="json")}).close()
    for options, words in (([], "no finished training step"), (["--profile", "smoke"], "is a run")):
        code, _, err = called(monkeypatch, capsys, "estimate", str(folder), *options)
        assert (code, err.count("\n")) == (2, 1), err
        assert words in err
