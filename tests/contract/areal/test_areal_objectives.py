"""KL to a reference and LoRA under `OSWorldWorkflow`: AReaL's tensors against their formulas, and an
update of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

Rows = list[dict[str, torch.Tensor]]


def rows_of(found: dict[str, Any]) -> Rows:
    """By trajectory: what AReaL computed from ours."""
    tensors = load_file(found["folder"] / "tensors.safetensors")
    numbers = sorted({int(name.split(".")[0]) for name in tensors})
    return [{name.split(".")[1]: tensors[name] for name in tensors if name.startswith(f"{n}.")} for n in numbers]


@pytest.fixture(scope="module")
def kl(found) -> dict[str, Any]:
    return found["kl"].result()


@pytest.fixture(scope="module")
def lora(found) -> dict[str, Any]:
    return found["lora"].result()


def test_a_penalty_of_divergence_stands_behind_the_groups_advantage(kl):
    """Of a token: the advantage of its episode less kl_ctl times the log-ratios of this and all later sampled
    tokens."""
    compared = 0
    for one in rows_of(kl):
        mask = one["loss_mask"]
        penalty = 0.1 * (one["logprobs"] - one["ref_logp"]).clamp(-10, 10) * mask  # AReaL's estimator clamps
        later = penalty.flip(1).cumsum(1).flip(1)
        expected = one["rewards"][:, None] - later
        assert torch.allclose(one["advantages"][mask.bool()], expected[mask.bool()], atol=1e-4)
        compared += int(mask.sum())
        assert penalty.abs().max() > 1e-3, "the reference is the policy itself"
    assert compared > 50
    rewards = torch.cat([one["rewards"] for one in rows_of(kl)])
    assert (rewards < 0).any()
    assert (rewards > 0).any(), "advantages of a group, not rewards"


def test_a_step_with_a_penalty_moves_the_policy(kl):
    assert kl["statistics"]["ppo_actor/update/update_successful"] == 1.0
    assert kl["moved"] > 0


def test_an_adapter_is_sampled_in_the_version_that_is_trained(lora):
    assert all("lora_" in name for name in lora["trained"])
    assert lora["moved"], "nothing moved"
    assert set(lora["moved"]) <= set(lora["trained"])
    assert max(lora["gaps"]) < 1e-4
    assert lora["old_gap"] > 10 * max(lora["gaps"]), "the step changed nothing that was sampled"
    assert lora["versions"] == [[-1, 0], [-1, 1]]
    assert lora["statistics"]["ppo_actor/update/update_successful"] == 1.0
