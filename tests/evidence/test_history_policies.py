"""A window that grows and drops trains on a quarter of the tokens of a sliding one, with the gradient of its unmerged calls."""

import asyncio
from dataclasses import replace

import torch
from bundled_weights import SOURCE, needs_weights

from benchmarks import history_policies
from benchmarks.thresholds import Bars

pytestmark = needs_weights


def test_growing_windows_train_on_four_times_fewer_tokens_with_the_same_gradient(tmp_path):
    torch.set_num_threads(1)
    found = asyncio.run(history_policies.measure(SOURCE, tmp_path, episodes=1, desktops=1, steps=1))
    bars = Bars()
    history_policies.judge(found, bars)
    assert bars.met
    assert found.growing.rows == 3
    assert found.sliding.rows == history_policies.STEPS
    worse = Bars()
    history_policies.judge(replace(found, growing=found.growing_single, cosine=0.5), worse)
    assert worse.missed == ["tokens trained", "merged gradient"]
