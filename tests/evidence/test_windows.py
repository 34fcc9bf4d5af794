"""A window that grows and drops trains on a quarter of the tokens of a sliding one, with the gradient of its unmerged calls."""

import asyncio
from dataclasses import replace

import torch
from shipped import SOURCE, needs_weights

from benchmarks import windows
from benchmarks.bars import Bars

pytestmark = needs_weights


def test_growing_windows_train_on_four_times_fewer_tokens_with_the_same_gradient(tmp_path):
    torch.set_num_threads(1)
    found = asyncio.run(windows.measure(SOURCE, tmp_path, episodes=1, desktops=1, steps=1))
    bars = Bars()
    windows.judge(found, bars)
    assert bars.met
    assert found.growing.rows == 3
    assert found.sliding.rows == windows.STEPS
    worse = Bars()
    windows.judge(replace(found, growing=found.growing_single, cosine=0.5), worse)
    assert worse.missed == ["tokens trained", "merged gradient"]
