"""PPO's gain is judged by the interval of the gain alone."""

from dataclasses import replace

import pytest
from test_learning import GOOD, report

from benchmarks import ppo
from benchmarks.thresholds import Bars


@pytest.mark.parametrize(
    ("found", "bars"),
    [
        (GOOD, []),
        (replace(GOOD, after=report(90, 130)), ["seed 0: success"]),
        (replace(GOOD, before=report(10, 20, 60)), ["seed 0: held-out episodes"]),
    ],
)
def test_a_gain_counts_when_its_interval_lies_above_zero(found, bars):
    judged = Bars()
    ppo.judge(found, judged)
    assert judged.missed == bars
