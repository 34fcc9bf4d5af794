"""Muon for hidden matrices, AdamW for the rest, as one optimizer of the trainer."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_policy import BANNED, build
from test_trainer import samples

from deskhand.config.trainer import LoraConfig, PolicyConfig, TrainerConfig
from deskhand.errors import ConfigError
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.muon import Float32Products, MuonAdamW, is_hidden_matrix
from deskhand.trainer.optimizer import make_optimizer
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer

RATE = 1e-2
CONFIG = TrainerConfig(learning_rate=RATE, optimizer="muon", weight_decay=0.01)


def parameters() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {"embed_tokens.weight": (7, 4), "layers.0.up.weight": (12, 5), "layers.0.down.weight": (5, 12)}
    shapes |= {"norm.weight": (5,), "visual.patch_embed.proj.weight": (4, 3, 1, 2, 2), "lm_head.weight": (7, 4)}
    return {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


def updates_of(optimizer, tensors, gradients):
    """What one update adds to each tensor."""
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        tensor.grad = gradients[name].clone()
    optimizer.step()
    return {name: (tensor.detach() - before[name]).double() for name, tensor in tensors.items()}


def test_hidden_matrices_move_along_their_orthogonalized_momentum():
    """arXiv:2502.16982, equation 4: 0.2 sqrt(max(A, B)) U V^T, for which Newton-Schulz has singular values near 1."""
    tensors = parameters()
    optimizer = make_optimizer(tensors, RATE, (0.9, 0.95), 0.0, "muon")
    gradients = {name: torch.randn_like(tensor) for name, tensor in tensors.items()}
    moved = updates_of(optimizer, tensors, gradients)
    for name in ("layers.0.up.weight", "layers.0.down.weight"):
        u, _, vh = torch.linalg.svd(gradients[name].double(), full_matrices=False)
        values = -(u.T @ moved[name] @ vh.T) / (RATE * 0.2 * 12**0.5)
        off_diagonal = values - torch.diag(values.diagonal())
        assert off_diagonal.abs().max() < 0.05
        assert (values.diagonal() > 0.5).all()
        assert (values.diagonal() < 1.5).all()
        rms = moved[name].square().mean().sqrt().item()
        assert rms == pytest.approx(0.2 * RATE, rel=0.5), "as large as AdamW's"


def test_all_other_parameters_are_trained_by_adamw():
    tensors, alone = parameters(), parameters()
    others = {name: alone[name] for name in alone if not name.startswith("layers")}
    reference = torch.optim.AdamW(others.values(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    optimizer = make_optimizer(tensors, RATE, (0.9, 0.95), 0.1, "muon")
    for seed in range(3):
        torch.manual_seed(seed)
        gradients = {name: torch.randn_like(tensor) for name, tensor in tensors.items()}
        moved, expected = updates_of(optimizer, tensors, gradients), updates_of(reference, others, gradients)
        assert all(torch.equal(moved[name], expected[name]) for name in others)
    assert {name for name in tensors if is_hidden_matrix(name, tensors[name])} == tensors.keys() - others.keys()


def test_weights_decay_in_hidden_matrices_only():
    tensors = parameters()
    optimizer = MuonAdamW(tensors, RATE, (0.9, 0.95), 0.5, matrix_learning_rate=0.1)
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    zero = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    updates_of(optimizer, tensors, zero)
    for name, tensor in tensors.items():
        factor = 1 - 0.1 * 0.5 if name.startswith("layers") else 1.0
        torch.testing.assert_close(tensor.detach(), factor * before[name])


def test_products_in_float32_stand_in_for_those_of_bfloat16() -> None:
    """Muon multiplies in bfloat16, 40 times slower than in float32 on CPUs without such instructions."""
    a, b = (torch.randn(48, 48, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (1, 2))
    plain, added = a @ b, torch.addmm(a, a, b, beta=-3.4, alpha=2.0)
    with Float32Products():
        assert torch.allclose(a @ b, plain, rtol=0.02, atol=0.02)
        assert torch.allclose(torch.addmm(a, a, b, beta=-3.4, alpha=2.0), added, rtol=0.02, atol=0.1)
        assert (a @ b).dtype is torch.bfloat16


def step(trainer, world):
    rows = [dataclasses.replace(sample, reward=sample.advantage) for sample in samples(world)]
    return trainer.step(rows, world.images).loss


def trainer_of(dtype: str, mode: dict, optimizer: str = "muon") -> Trainer:
    config = CONFIG.model_copy(update={"optimizer": optimizer})
    return Trainer(Policy(build().to(getattr(torch, dtype)), PolicyConfig(**mode), BANNED), config)


@pytest.mark.parametrize(
    ("dtype", "mode"), [("float32", {}), ("bfloat16", {}), ("float32", {"lora": LoraConfig(rank=2, alpha=4)})]
)
def test_a_run_resumes_bit_exact(world, tmp_path, dtype, mode):
    """Adapters are matrices without exception, so AdamW has nothing to train there."""
    first, second = trainer_of(dtype, mode), trainer_of(dtype, mode)
    step(first, world)
    CheckpointManager(tmp_path / "run").save(first, tmp_path)
    assert CheckpointManager(tmp_path / "run").load(second) is not None
    assert step(first, world) == step(second, world)
    ours, theirs = first.policy.snapshot(), second.policy.snapshot()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    kept = {name: set(first.optimizer.state[tensor]) for name, tensor in first.policy.parameters().items()}
    assert {"momentum_buffer"} in kept.values()
    assert ({"step", "exp_avg", "exp_avg_sq"} in kept.values()) is not bool(mode)


@pytest.mark.parametrize(
    ("saved_with", "loaded_with", "names"),
    [("muon", "adamw", "saved with muon, got adamw"), ("adamw_fused", "muon", "saved with adamw, got muon")],
)
def test_a_checkpoint_of_another_optimizer_is_refused_and_changes_nothing(
    world, tmp_path, saved_with, loaded_with, names
):
    first, second = trainer_of("float32", {}, saved_with), trainer_of("float32", {}, loaded_with)
    step(first, world)
    CheckpointManager(tmp_path / "run").save(first, tmp_path)
    before = {name: tensor.clone() for name, tensor in second.policy.snapshot().items()}
    with pytest.raises(ConfigError, match=f"{names}; resume with the trainer settings of the run"):
        CheckpointManager(tmp_path / "run").load(second)
    assert all(torch.equal(before[name], tensor) for name, tensor in second.policy.snapshot().items())
    assert step(second, world) is not None
