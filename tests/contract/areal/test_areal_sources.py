"""A task of each benchmark is trained for one update, on machines that workers lease from a desktop server."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("source", ["openadapt", "waa", "osworld"])
def test_a_task_of_a_benchmark_is_trained_on_leased_machines(found, source):
    found = found["sources"].result()[source]
    assert sorted(reward for _, reward in found["outcomes"]) == [0.0, 1.0], found["outcomes"]
    assert found["gap"] < 1e-5
    assert found["update"]["ppo_actor/update/update_successful"] == 1.0
    assert found["update"]["ppo_actor/update/grad_norm"] > 0
    assert min(found["advantages"]) < 0 < max(found["advantages"])
