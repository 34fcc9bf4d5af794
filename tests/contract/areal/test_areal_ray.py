"""`deskhand train --trainer areal` on a Ray cluster of two nodes: AReaL's own RayScheduler, workers on both nodes, and
an update of all weights."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def ended(found) -> dict[str, Any]:
    return found["ray"].result()


@pytest.fixture(scope="module")
def run(ended) -> dict[str, Any]:
    if "no_processors" in ended:
        pytest.skip("this AReaL's RayScheduler does not support clusters without GPUs")
    return ended


def test_workers_of_both_roles_ran_on_both_nodes(run):
    placed = {(actor["name"], actor["node"]) for actor in run["actors"]}
    for role in ("actor", "rollout"):
        nodes = {node for name, node in placed if name.startswith(f"{role}/")}
        assert nodes == {"127.0.0.2", "127.0.0.3"}, placed


def test_two_updates_reach_all_servers_and_the_checkpoint(run):
    assert [line["step"] for line in run["steps"]] == [1, 2]
    assert all(line["ppo_actor/update/update_successful"] == 1.0 for line in run["steps"])
    assert run["moved"], "two updates changed nothing"
    assert run["same"] == [True, True]
    assert run["versions"] == [2, 2]
    assert min(run["requests"]) > 0, "a rollout worker played nothing"


def test_log_probs_of_rays_own_workers_are_those_of_the_server(run):
    """Without the patches of `worker.patch_process` packed rows attend to each other."""
    first = run["steps"][0]
    assert abs(first["ppo_actor/update/behave_approx_kl/avg"]) < 1e-4
    assert abs(first["ppo_actor/update/behave_imp_weight/avg"] - 1.0) < 1e-3


def test_an_areal_that_refuses_processors_is_named_before_a_worker_starts(ended):
    if "no_processors" not in ended:
        assert ended["steps"], "either it trains, or it says why not"
        return
    (line,) = [line for line in ended["no_processors"].splitlines() if line.startswith("error: ")]
    assert line.startswith("error: scheduler.type ray: AReaL 2.")
    assert "scheduler.type=local" in line
    assert "Traceback" not in ended["no_processors"]


def test_a_key_that_is_missing_on_one_node_is_named_before_a_worker_starts(ended):
    code, said = ended["refused"]
    assert code == 2
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "node 127.0.0.3: desktops.api_key_env: the environment variable DESKHAND_TEST_NODE_KEY" in line
    assert "127.0.0.2" not in line
    assert "Traceback" not in said
