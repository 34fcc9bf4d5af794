"""A task file of OSWorld, played on real desktops and judged as OSWorld judges it, is among what AReaL trains."""

from __future__ import annotations

import pytest
from areal_jobs import OSWORLD_FILE


def test_an_episode_of_osworld_is_trained_with_its_own_evaluator_s_reward(found):
    if not OSWORLD_FILE.is_file():
        pytest.skip(f"{OSWORLD_FILE} is not there; it is a file of OSWorld's repository")
    found = found["osworld"].result()
    assert sorted(reward for _, reward in found["outcomes"]) == [0.0, 1.0], found["outcomes"]
    assert found["gap"] < 1e-5
    assert found["update"]["ppo_actor/update/update_successful"] == 1.0
    assert found["update"]["ppo_actor/update/grad_norm"] > 0
    assert min(found["advantages"]) < 0 < max(found["advantages"])
