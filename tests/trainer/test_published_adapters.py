"""Adapters alone go to an engine that has a copy of the model: a few tensors, and it then samples what the trainer
scores."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from small_policy import BANNED, BUILT
from test_trainer import samples

from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import LoraConfig, PolicyConfig, TrainerConfig
from deskhand.engines.hf import HfEngine
from deskhand.errors import ConfigError
from deskhand.models.load import LoadedModel
from deskhand.recorder.graph import Sequence
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import push_weights
from deskhand.types import LoraWeights, Prompt, Sampling


def apart(dtype: torch.dtype = torch.float32, **settings) -> tuple[HfEngine, Trainer]:
    """An engine with a copy of its own, and a trainer."""
    engine = HfEngine(
        LoadedModel(copy.deepcopy(BUILT).to(dtype), None, None, "qwen3_vl", "random"), EngineConfig(max_model_len=400)
    )  # type: ignore[arg-type]
    policy = Policy(copy.deepcopy(BUILT).to(dtype), PolicyConfig(**settings), BANNED)
    return engine, Trainer(policy, TrainerConfig(learning_rate=3e-2))


WORDS = Prompt(tuple(int(word) for word in np.random.default_rng(5).integers(8, 48, 30)))


async def sampled(
    engine: HfEngine, policy: Policy, prompt: Prompt = WORDS
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Log-probs of a reply as the engine gave them, and as the policy scores them."""
    done = await engine.generate(prompt, Sampling(max_tokens=12, banned_ids=BANNED, seed=1))
    given, count = len(prompt.token_ids), len(done.token_ids)
    row = Sequence(
        prompt.token_ids + done.token_ids,
        (False,) * given + (True,) * count,
        (0.0,) * given + done.logprobs,
        (-1,) * given + done.versions,
        prompt.spans,
        ("a",),
    )
    return np.array(done.logprobs), policy.logprobs([row], prompt.images or {})[0], done.versions


class Handed:
    """What an engine is handed, counted; the engine takes it."""

    def __init__(self, engine: HfEngine) -> None:
        self.engine, self.supports_lora, self.supports_vision_lora, self.bytes = engine, True, True, 0

    async def update_weights(self, version, weights):
        self.bytes += sum(value.nbytes for value in weights.values())
        await self.engine.update_weights(version, weights)

    async def update_lora(self, version, adapter):
        self.bytes += sum(value.nbytes for value in adapter.weights.values())
        await self.engine.update_lora(version, adapter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_the_engine_computes_what_the_trainer_computes_after_every_publication(world, dtype):
    engine, trainer = apart(dtype, lora=LoraConfig(rank=4, alpha=8))
    handed, near = Handed(engine), 2e-5 if dtype == torch.float32 else 0.05
    try:
        first, _, _ = await sampled(engine, trainer.policy)
        for version in (1, 2):
            trainer.step(samples(world), world.images)
            await push_weights(trainer.policy, handed, version)  # pyright: ignore[reportArgumentType]
            ours, theirs, versions = await sampled(engine, trainer.policy)
            assert np.abs(ours - theirs).max() < near
            assert set(versions) == {version}
        assert not np.allclose(ours, first, atol=1e-3), "the adapter changed nothing"
        assert handed.bytes == 2 * sum(p.nbytes for n, p in trainer.policy.model.named_parameters() if "lora_" in n)
    finally:
        await engine.close()


async def test_an_adapter_for_the_vision_tower_is_seen_through(world):
    """The engine's features of a picture that it has seen before are those of the new adapter."""
    engine, trainer = apart(lora=LoraConfig(rank=4, alpha=8, vision=True))
    handed, call = Handed(engine), world.graphs[0].calls[0]
    prompt = Prompt(call.prompt_ids, call.spans, world.images)
    try:
        before, _, _ = await sampled(engine, trainer.policy, prompt)
        with torch.no_grad():
            for name, parameter in trainer.policy.parameters().items():
                if ".visual." in name:
                    parameter.normal_(0, 0.3)
        await push_weights(trainer.policy, handed, 1)  # pyright: ignore[reportArgumentType]
        ours, theirs, versions = await sampled(engine, trainer.policy, prompt)
        assert np.abs(ours - theirs).max() < 2e-5
        assert set(versions) == {1}
        assert not np.allclose(ours[:1], before[:1], atol=1e-3), "the tower's adapter changed nothing"
        assert handed.bytes == sum(value.nbytes for value in trainer.policy.parameters().values())
    finally:
        await engine.close()


async def test_an_engine_that_takes_none_for_the_tower_gets_whole_weights(world):
    engine, trainer = apart(lora=LoraConfig(rank=4, vision=True))
    handed = Handed(engine)
    handed.supports_vision_lora = False
    try:
        await push_weights(trainer.policy, handed, 1)  # pyright: ignore[reportArgumentType]
        assert handed.bytes > sum(value.nbytes for value in BUILT.parameters())
    finally:
        await engine.close()


async def test_whole_weights_replace_the_adapter(world):
    """Merged weights after an adapter: it is not applied twice."""
    engine, trainer = apart(lora=LoraConfig(rank=4, alpha=8))
    try:
        trainer.step(samples(world), world.images)
        await push_weights(trainer.policy, engine, 1)
        await engine.update_weights(2, trainer.policy.snapshot())
        ours, theirs, versions = await sampled(engine, trainer.policy)
        assert np.abs(ours - theirs).max() < 2e-5
        assert set(versions) == {2}
    finally:
        await engine.close()


async def test_an_adapter_for_another_model_is_refused_and_the_engine_goes_on(world):
    engine, trainer = apart(lora=LoraConfig(rank=4))
    adapter = trainer.policy.adapter()
    assert adapter is not None
    name = next(iter(adapter.weights))
    wrong = (
        LoraWeights({}, adapter.config),
        LoraWeights({name.replace("q_proj", "z_proj"): adapter.weights[name]}, adapter.config),
        LoraWeights({name.replace("self_attn.q_proj", "input_layernorm"): adapter.weights[name]}, adapter.config),
        LoraWeights({name: adapter.weights[name][:, :-1]}, adapter.config),
        LoraWeights(adapter.weights, {**adapter.config, "r": 5}),
    )
    try:
        for each in wrong:
            with pytest.raises(ConfigError, match="adapter"):
                await engine.update_lora(1, each)
        assert engine.version == 0
        await engine.update_lora(1, adapter)
        with pytest.raises(ConfigError, match="projections differ"):
            await engine.update_lora(2, LoraWeights(dict(list(adapter.weights.items())[:2]), adapter.config))
        assert set((await sampled(engine, trainer.policy))[2]) == {1}
    finally:
        await engine.close()
