"""What judges the soak of a training process sees what grows or slows down."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.thresholds import Thresholds
from benchmarks.training_soak import Sample, judge

STEADY = [Sample(float(at), 500.0, 20, 15, 3, at) for at in range(401)]


def missed(change=lambda sample: sample, wanted: int = 400) -> list[str]:
    thresholds = Thresholds()
    judge([change(sample) for sample in STEADY], wanted, thresholds)
    return thresholds.missed


def late(sample: Sample) -> bool:
    return sample.episodes > 300


def test_each_kind_of_growth_misses_a_threshold() -> None:
    assert missed() == []
    assert missed(wanted=401) == ["episodes"]
    assert missed(lambda sample: replace(sample, anonymous_mib=500 + 200 * late(sample))) == ["memory"]
    assert missed(lambda sample: replace(sample, descriptors=20 + 10 * late(sample))) == ["descriptors"]
    assert missed(lambda sample: replace(sample, threads=15 + 10 * late(sample))) == ["threads"]
    assert missed(lambda sample: replace(sample, children=3 + 10 * late(sample))) == ["children"]
    slower = missed(lambda sample: replace(sample, at_s=sample.at_s + 2 * max(0, sample.episodes - 300)))
    assert slower == ["speed"]
    assert missed(lambda sample: replace(sample, episodes=0)) == ["episodes", "samples"]
