"""Gains, their intervals, and the bars that the demo's runs are held to."""

from dataclasses import replace

import pytest

from benchmarks import learning
from benchmarks.thresholds import Thresholds
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import Proportion
from deskhand.store.run import Checkpoint, EpisodeRow, Run


def report(hits: int, clicks: int, total: int = 210) -> EvalReport:
    return EvalReport(
        "r", Proportion(hits, total), {"family": Proportion(hits, total)}, Proportion(clicks, total), hits / total
    )


GREEDY = {"greedy": (report(130, 140), report(165, 175))}
GOOD = learning.Outcome("seed 0", report(80, 120), report(160, 170), 12, 600, 41.0, 400.0, 560.0, 1200.0, GREEDY)
BLIND = learning.Outcome("blind", report(10, 30), report(14, 32), 12, 600, 41.0, 400.0, 560.0, 1200.0)


def test_a_gains_interval_is_newcombes():
    gain = learning.Gain(Proportion(48, 80), Proportion(56, 70))
    assert gain.value == pytest.approx(0.2)
    assert gain.interval == pytest.approx((0.0524, 0.3339), abs=5e-5), "Newcombe 1998, table II, row a, method 10"


def missed(*, good: learning.Outcome = GOOD, blind: learning.Outcome = BLIND) -> list[str]:
    thresholds = Thresholds()
    learning.judge_time(good, thresholds)
    learning.judge_gain(good, thresholds)
    learning.judge_greedy(good, thresholds)
    learning.judge_blind(blind, [good], thresholds)
    return thresholds.missed


def test_a_run_that_meets_every_threshold_misses_none():
    assert missed() == []


@pytest.mark.parametrize(
    ("worse", "threshold"),
    [
        (replace(GOOD, after=report(110, 170)), "seed 0: success"),
        (replace(GOOD, after=report(160, 135)), "seed 0: first click on target"),
        (replace(GOOD, before=report(40, 60, 100)), "seed 0: held-out episodes"),
        (replace(GOOD, more={"greedy": (report(130, 140), report(150, 175))}), "seed 0: greedy success"),
        (replace(GOOD, first_update_s=61.0), "seed 0: first update"),
        (replace(GOOD, total_s=601.0), "seed 0: whole demo"),
        (replace(GOOD, peak_mib=1537.0), "seed 0: memory"),
    ],
)
def test_each_threshold_can_be_missed(worse, threshold):
    assert threshold in missed(good=worse)


def test_gains_without_images_are_noticed():
    assert missed(blind=replace(BLIND, after=report(60, 40))) == ["blind against seed 0"]


def test_a_run_without_an_update_has_gained_nothing_and_misses_the_threshold_of_the_first_update(tmp_path):
    with Run.create(tmp_path / "run", {}) as run:
        run.commit(counts={}, checkpoint=Checkpoint(0, 0, tmp_path / "run/checkpoints/step-000000", 1000.0))
        row = EpisodeRow("e", "version-0", None, 0, "t", "family", 1, "test", "in_flight")
        run.start_episode(row)
        run.finish_episode(replace(row, state="scored", value=1.0, reward=1.0, first_click=True), {}, b"")
        found = learning.outcome_of("blind", run, 990.0, 20.0)
    assert found.steps == 0
    assert learning.Gain(found.before.success, found.after.success).value == 0
    thresholds = Thresholds()
    learning.judge_time(found, thresholds)
    assert thresholds.missed == ["blind: first update"]
