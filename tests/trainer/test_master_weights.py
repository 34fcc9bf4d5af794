"""Half precision with float32 master weights: no rounded updates or gradient sums, bit-exact resume."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from small_policy import BANNED, build
from test_trainer import samples, weights

from deskhand.config.trainer import CriticConfig, LoraConfig, PolicyConfig, TrainerConfig
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.policy import MasterWeights, Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.vision_features import VisionFeatureCache


def half_policy(**settings):
    return Policy(build().to(torch.bfloat16), PolicyConfig(**settings), BANNED)


def test_updates_smaller_than_a_half_precision_step_add_up():
    weight = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    masters = MasterWeights({"w": weight})
    optimizer = torch.optim.SGD(masters.tensors.values(), lr=1e-3)
    for _ in range(8):
        (weight.float().sum()).backward()
        assert weight.grad is None, "moved to the master at once"
        optimizer.step()
        masters.sync_to_model()
        optimizer.zero_grad()
    assert torch.allclose(masters.tensors["w"], torch.full((4,), 0.992))
    assert (weight < 1).all(), "eight updates of 1/1000 of the weight; each alone is rounded away"
    plain = torch.ones(4, dtype=torch.bfloat16)
    for _ in range(8):
        plain -= 1e-3
    assert (plain == 1).all(), "so it would be without masters"


def test_the_gradients_of_micro_batches_add_up_in_float32():
    weight = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    masters = MasterWeights({"w": weight})
    for value in [256.0] + [1.0] * 64:
        (weight * value).sum().backward()
    assert masters.tensors["w"].grad.item() == 320.0
    rounded = torch.tensor(256.0, dtype=torch.bfloat16)
    for _ in range(64):
        rounded += 1.0
    assert rounded.item() == 256.0, "so it would be without masters"


def test_float32_parameters_are_their_own_masters(make_policy):
    policy = make_policy()
    assert all(policy.parameters()[name] is parameter for name, parameter in policy.model.named_parameters())


def test_a_half_precision_step_goes_where_the_float32_step_goes(make_policy, world):
    def change(policy):
        trainer = Trainer(policy, TrainerConfig(max_grad_norm=1e9))
        trainer.optimizer = torch.optim.SGD(policy.parameters().values(), lr=1e-5)
        trainer.config = trainer.config.model_copy(update={"learning_rate": 1e-5})
        before = weights(policy)
        metrics = trainer.step(samples(world), world.images)
        return weights(policy) - before, metrics

    whole, _ = change(make_policy())
    half, metrics = change(half_policy())
    assert half.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(half, whole, dim=0) > 0.9
    assert metrics.num_updates == 1


def test_published_weights_are_the_rounded_masters(world):
    policy = half_policy()
    trainer = Trainer(policy, TrainerConfig(learning_rate=1e-2))
    trainer.step(samples(world), world.images)
    published = policy.snapshot()
    for name, master in policy.parameters().items():
        assert published[name].dtype == torch.bfloat16
        assert torch.equal(published[name], master.to(torch.bfloat16))


RESUMED = {
    "adapters": ({"lora": LoraConfig(rank=4, alpha=8)}, {}),
    "a critic of its own": (
        {},
        {"algorithm": "ppo", "critic": CriticConfig(backbone="separate", backbone_learning_rate=1e-2)},
    ),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_resumed_half_precision_model_computes_with_what_was_saved_before_its_next_update(world, tmp_path, kind):
    """What the engine is given first, and what the first gradient is taken at, are the weights of the checkpoint."""
    mode, chosen = RESUMED[kind]
    config, rows = TrainerConfig(learning_rate=1e-2, **chosen), [sample.sequence for sample in samples(world)]
    first, second = (Trainer(half_policy(**mode), config) for _ in range(2))
    for _ in range(2):
        first.step([dataclasses.replace(sample, reward=sample.advantage) for sample in samples(world)], world.images)
    CheckpointManager(tmp_path / "run").save(first, tmp_path)
    assert CheckpointManager(tmp_path / "run").load(second) is not None
    untrained = Trainer(half_policy(**mode), config)
    for read in (
        lambda trainer: trainer.policy.logprobs(rows, world.images),
        lambda trainer: trainer.critic.values(rows, world.images) if trainer.critic else [],
    ):
        saved, resumed, began = (read(trainer) for trainer in (first, second, untrained))
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(saved, resumed, strict=True))
        assert not saved or any(np.abs(ours - theirs).max() > 1e-2 for ours, theirs in zip(saved, began, strict=True))
    published, original = second.policy.snapshot(), first.policy.snapshot()
    assert all(torch.equal(published[name], original[name]) for name in original)


def test_the_gradients_of_image_features_add_up_in_float32(world):
    """300 rows show one picture: a sum in half precision stays at 256."""
    name, image = next(iter(world.images.items()))
    found = []
    for rows, weight in ((300, 1.0), (1, 300.0)):
        policy = half_policy()
        features = VisionFeatureCache(policy.model, {name: image}, 10**6, gradients=True)
        for _ in range(rows):
            sum(
                layer_NH.float().sum() * weight for layer_NH in features.of((name,), torch.arange(image.tokens))
            ).backward()
        features.backward()
        found.append({key: value.grad for key, value in policy.parameters().items() if value.grad is not None})
    many, once = found
    assert many.keys() == once.keys()
    assert any(".visual." in key for key in many)
    assert all(torch.equal(many[key], once[key]) for key in many)


def test_recomputed_activations_need_less_memory_and_give_the_same_gradient(make_policy, world):
    """Memory: bytes that the graph of one forward pass saves."""

    def run(**settings):
        policy, saved = make_policy(**settings), {}

        def note(tensor):
            saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        rows = [sample.sequence for sample in samples(world)]
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            policy.accumulate(policy.plan(rows, world.images), lambda batch, scores: scores.logprobs_W.sum())
        return torch.cat([value.grad.flatten() for value in policy.parameters().values()]), sum(saved.values())

    (gradient, memory), (expected, more_memory) = run(gradient_checkpointing=True), run()
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    assert memory < more_memory


def test_eight_bit_moments_say_what_they_need():
    from deskhand.errors import ConfigError

    with pytest.raises(ConfigError, match="adamw_8bit needs a GPU"):
        Trainer(half_policy(), TrainerConfig(optimizer="adamw_8bit"))
