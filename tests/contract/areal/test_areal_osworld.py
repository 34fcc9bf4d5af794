"""A task file of OSWorld, played on real desktops and judged as OSWorld judges it, is among what AReaL trains."""

from __future__ import annotations

import areal_models
import pytest
import torch
from areal_osworld import TASK_ID
from areal_serving import ROOT, inference_server

FILE = ROOT.parent / "shared" / "data" / "osworld" / "chrome" / f"{TASK_ID}.json"


def test_an_episode_of_osworld_is_trained_with_its_own_evaluator_s_reward(probe, tmp_path):
    if not FILE.is_file():
        pytest.skip(f"{FILE} is not there; it is a file of OSWorld's repository")
    torch.set_num_threads(1)
    checkpoint = areal_models.save_checkpoint(tmp_path / "model", "qwen3_vl")
    with inference_server(checkpoint) as address:
        found = probe("osworld_probe.py", tmp_path, str(checkpoint), address, str(FILE))
    assert sorted(reward for _, reward in found["outcomes"]) == [0.0, 1.0], found["outcomes"]
    assert found["gap"] < 1e-5
    assert found["update"]["ppo_actor/update/update_successful"] == 1.0
    assert found["update"]["ppo_actor/update/grad_norm"] > 0
    assert sorted(found["advantages"])[0] < 0 < sorted(found["advantages"])[-1]
