"""Masters and moments in host memory: equal to a run without, bit for bit, also across checkpoints."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_policy import BANNED, build
from test_memory_estimate_terms import values_of, work
from test_trainer import samples

from deskhand.config.load import load_config
from deskhand.config.trainer import CriticConfig, LoraConfig, PolicyConfig, TrainerConfig
from deskhand.errors import ConfigError
from deskhand.trainer import offload
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.memory_estimate import estimate_memory
from deskhand.trainer.optimizer import optimizer_step
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer

CONFIG = TrainerConfig(learning_rate=1e-2, ppo_epochs=2, num_minibatches=2, warmup_steps=3, weight_decay=0.01)
MODES = {
    "half precision": ("bfloat16", {}, {}),
    "half precision, plain operations": ("bfloat16", {}, {"optimizer": "adamw"}),
    "float32": ("float32", {}, {}),
    "adapters": ("bfloat16", {"lora": LoraConfig(rank=2, alpha=4)}, {}),
    "a critic of its own": ("bfloat16", {}, {"algorithm": "ppo", "critic": CriticConfig(backbone="separate")}),
}


def slice_of(kind):
    """A slice so small that weights are updated in several parts."""
    return 64 if kind == "adapters" else 2048


def trainer_of(kind: str, *, offloaded: bool, device: str = "cpu") -> Trainer:
    dtype, mode, settings = MODES[kind]
    policy = Policy(build().to(getattr(torch, dtype)).to(device), PolicyConfig(**mode), BANNED)
    return Trainer(policy, CONFIG.model_copy(update={**settings, "optimizer_offload": offloaded}))


def step(trainer, world):
    rows = [dataclasses.replace(sample, reward=sample.advantage) for sample in samples(world)]
    metrics = trainer.step(rows, world.images)
    assert metrics.num_updates == 4
    return metrics.loss, metrics.grad_norm, metrics.approx_kl


def state(trainer):
    """Every tensor that is trained, moments, and the model's weights."""
    found = {f"model/{name}": tensor for name, tensor in trainer.policy.snapshot().items()}
    for prefix, parameters, optimizer in trainer.parts():
        for name, parameter in parameters.items():
            found[f"parameter/{prefix}{name}"] = parameter.detach()
            found |= {f"{key}/{prefix}{name}": value for key, value in optimizer.state[parameter].items()}
    return {name: tensor.cpu().clone() for name, tensor in found.items()}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("kind", MODES)
def test_offloaded_masters_and_moments_give_the_same_run(world, monkeypatch, kind):
    monkeypatch.setattr(offload, "MAX_SLICE", slice_of(kind))
    plain, offloaded = (trainer_of(kind, offloaded=value) for value in (False, True))
    for _ in range(2):
        assert step(plain, world) == step(offloaded, world)
        assert_same(state(plain), state(offloaded))
    assert max(part.numel() for part in offloaded.policy.parameters().values()) > slice_of(kind)


@pytest.mark.parametrize("saved_with", [True, False])
def test_a_run_resumes_with_and_without_the_option(world, tmp_path, saved_with):
    first, second = (trainer_of("half precision", offloaded=value) for value in (saved_with, not saved_with))
    step(first, world)
    CheckpointManager(tmp_path / "run").save(first, tmp_path)
    assert CheckpointManager(tmp_path / "run").load(second) is not None
    assert_same(state(first), state(second))
    assert step(first, world) == step(second, world)
    assert_same(state(first), state(second))


def test_between_updates_nothing_but_weights_and_gradients_is_on_the_device(world):
    """The holders of the gradients have the masters' shape and one number; the masters have no gradient."""
    policy = trainer_of("half precision", offloaded=True).policy
    rows = [sample.sequence for sample in samples(world)]
    policy.accumulate(policy.plan(rows, world.images), lambda batch, scores: scores.logprobs_W.sum())
    holders = policy.gradient_holders()
    assert all(holder.untyped_storage().nbytes() == 4 for holder in holders.values())
    for name, master in policy.parameters().items():
        assert holders[name].grad.dtype == torch.float32
        assert (holders[name].shape, master.grad) == (master.shape, None)
        assert not master.isnan().any()


def test_an_update_that_is_not_finite_is_skipped_and_its_gradient_dropped(world):
    trainer = trainer_of("half precision", offloaded=True)
    step(trainer, world)
    before = state(trainer)
    holders = trainer.policy.gradient_holders()
    next(iter(holders.values())).grad = torch.full_like(next(iter(trainer.policy.parameters().values())), torch.inf)
    assert optimizer_step(trainer.policy, trainer.optimizer, 1e-2, 1.0)[1] is False
    assert_same(before, state(trainer))
    assert all(holder.grad is None for holder in holders.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_masters_and_moments_are_in_pinned_memory_and_the_run_is_the_same(world, monkeypatch):
    monkeypatch.setattr(offload, "MAX_SLICE", slice_of("half precision"))
    plain, offloaded = (trainer_of("half precision", offloaded=value, device="cuda") for value in (False, True))
    for _ in range(2):
        assert step(plain, world) == step(offloaded, world)
        assert_same(state(plain), state(offloaded))
    for master in offloaded.policy.parameters().values():
        moments = offloaded.optimizer.state[master]
        assert all(tensor.is_pinned() for tensor in (master, moments["exp_avg"], moments["exp_avg_sq"]))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_estimate_takes_offloaded_masters_and_moments_from_the_device(dtype, algorithm):
    trainer = TrainerConfig(algorithm=algorithm, critic=CriticConfig(backbone="separate"))
    values, policy = values_of("qwen3_vl"), PolicyConfig()
    made = {
        value: estimate_memory(
            values, dtype, policy, trainer.model_copy(update={"optimizer_offload": value}), None, work(), cuda=True
        )
        for value in (False, True)
    }
    models, each = (2 if algorithm == "ppo" else 1), (12 if dtype == "bfloat16" else 8)
    trained = made[True].traced.trained + made[True].tower.trained
    saved = made[False].least() - made[True].least()
    assert saved == pytest.approx(models * each * trained)
    host = {term.name: term.min_bytes for term in made[True].terms if term.place == "host"}
    assert sum(host[name] for name in ("masters", "moments", "critic, offloaded") if name in host) == saved
    assert made[True].least("host") - made[False].least("host") == pytest.approx(saved)


def test_combinations_without_sense_are_rejected():
    for other in ("adamw_8bit", "muon"):
        refused = f"trainer.optimizer_offload is not for optimizer {other}; use adamw_fused"
        with pytest.raises(ConfigError, match=refused):
            load_config(None, ["trainer.optimizer_offload=true", f"trainer.optimizer={other}"])
    refused = load_config(None, ["trainer.optimizer_offload=true"]).training_error
    assert refused == "trainer.optimizer_offload saves memory of a GPU, but device is cpu; remove it"
    assert load_config(None, ["trainer.optimizer_offload=true", "device=cuda:0"]).training_error is None
