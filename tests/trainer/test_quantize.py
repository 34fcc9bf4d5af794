"""QLoRA: frozen projections in 4 bits, on a CPU with the real library; without it, one line that says so."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
import random_models
import torch
from small_policy import BANNED, build
from test_trainer import samples

from deskhand.config.trainer import LoraConfig, PolicyConfig, TrainerConfig
from deskhand.errors import ConfigError
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.lora import dequantize, is_quantized
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer


def packed(**settings) -> Policy:
    return Policy(build(), PolicyConfig(lora=LoraConfig(rank=4, alpha=8, load_in_4bit=True), **settings), BANNED)


def test_only_projections_of_the_language_model_are_quantized_and_only_adapters_train():
    policy = packed()
    names = {name.removesuffix(".base_layer") for name, module in policy.model.named_modules() if is_quantized(module)}
    assert len(names) == 3 * 7
    assert all("language_model.layers" in name for name in names)
    assert all(".lora_" in name for name in policy.parameters())


def test_what_is_published_has_the_checkpoints_names_and_is_what_the_trainer_computes_with(world):
    """The published weights, in a plain model, give the packed model's log-probs; before and after a step."""
    policy, rows = packed(), [sample.sequence for sample in samples(world)]
    trainer = Trainer(policy, TrainerConfig(learning_rate=1e-2))
    original = build().state_dict()
    for _ in range(2):
        published = policy.snapshot()
        assert published.keys() == original.keys()
        assert all(published[name].dtype == torch.float32 for name in published)
        plain = build()
        plain.load_state_dict(published)
        expected = Policy(plain, banned_ids=BANNED).logprobs(rows, world.images)
        for ours, theirs in zip(policy.logprobs(rows, world.images), expected, strict=True):
            assert abs(ours - theirs).max() < 1e-4
        trainer.step(samples(world), world.images)
    changed = [name for name, value in published.items() if not torch.equal(value, original[name])]
    assert len(changed) == 3 * 7


def test_projections_without_adapters_are_published_each_as_itself():
    """Every packed matrix, unpacked on its own, is what stands under its name."""
    policy = Policy(
        build(), PolicyConfig(lora=LoraConfig(rank=4, target_modules=("q_proj",), load_in_4bit=True)), BANNED
    )
    published = policy.snapshot("cpu")
    plain = [name for name, module in policy.model.named_modules() if is_quantized(module) and "q_proj" not in name]
    assert len(plain) == 3 * 6
    for name in plain:
        assert torch.equal(published[f"{name}.weight"], dequantize(policy.model.get_submodule(name))), name


def test_what_half_precision_rounds_off_merged_adapters_is_measured(world):
    """bfloat16 rounds the sum of quantized weights and LoRA; a server computes with the rounded sum."""

    def policy() -> Policy:
        config = PolicyConfig(lora=LoraConfig(rank=4, alpha=8, load_in_4bit=True))
        return Policy(build().to(torch.bfloat16), config, BANNED)

    trained = Trainer(policy(), TrainerConfig(learning_rate=3e-2))
    for _ in range(3):
        trained.step(samples(world), world.images)
    plain = build().to(torch.bfloat16)
    plain.load_state_dict(trained.policy.snapshot("cpu"))
    rows = [sample.sequence for sample in samples(world)]
    served = Policy(plain, banned_ids=BANNED).logprobs(rows, world.images)
    ours = trained.policy.logprobs(rows, world.images)
    gaps = np.concatenate([new.astype(np.float64) - old for new, old in zip(ours, served, strict=True)])
    assert 0 < np.abs(gaps).max() < 0.2, "rounded, and no further off than rounding is"

    def as_served(sample: TrainingSample, logprobs: np.ndarray) -> TrainingSample:
        given, version = iter(logprobs.tolist()), trained.version
        row = sample.sequence
        told = tuple(next(given) if sampled else 0.0 for sampled in row.loss_mask)
        versions = tuple(version if sampled else -1 for sampled in row.loss_mask)
        return dataclasses.replace(sample, sequence=dataclasses.replace(row, logprobs=told, versions=versions))

    step = trained.step([as_served(*pair) for pair in zip(samples(world), served, strict=True)], world.images)
    assert step.engine_kl == pytest.approx(float(np.mean(np.expm1(gaps) - gaps)), rel=1e-2)
    print(f"merged and rounded: at most {np.abs(gaps).max():.3f} nat, engine_kl {step.engine_kl:.2e}")


def test_without_the_library_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"policy\.lora\.load_in_4bit: bitsandbytes cannot be loaded") as refused:
        packed()
    assert "\n" not in str(refused.value)


def test_experts_are_not_quantized_and_have_no_adapters():
    for wrong, message in (
        ({"load_in_4bit": True}, "load_in_4bit: experts cannot be stored in 4 bits; set it to false"),
        ({}, "unknown projection gate_proj, up_proj, down_proj; available: k_proj, o_proj, q_proj, v_proj"),
        ({"target_modules": ("gate_up_proj",)}, "unknown projection gate_up_proj; available: k_proj"),
    ):
        with pytest.raises(ConfigError, match=message):
            Policy(random_models.build("qwen3_vl_moe"), PolicyConfig(lora=LoraConfig(**wrong)))
