"""One process, two roles: engine and trainer hold the same tensors, and nothing is sampled while the engine is held."""

from __future__ import annotations

import asyncio
import copy

import pytest
from conftest import _BUILT, BANNED
from test_trainer import samples

from deskhand.engines.base import Prompt, Sampling
from deskhand.engines.hf import HfEngine
from deskhand.models.load import LoadedModel
from deskhand.training.config import AdapterConfig, PolicyConfig, TrainerConfig
from deskhand.training.memory import Allocations
from deskhand.training.policy import Policy
from deskhand.training.publish import join, publish
from deskhand.training.trainer import Trainer


def joined(policy_config: PolicyConfig, trainer_config: TrainerConfig):
    model = copy.deepcopy(_BUILT)
    engine = HfEngine(LoadedModel(model, None, None, "qwen3_vl", "random"), max_tokens=400)  # type: ignore[arg-type]
    trainer = Trainer(Policy(model, policy_config, BANNED), trainer_config)
    join(trainer, engine)
    return engine, trainer


@pytest.mark.parametrize("adapter", [None, AdapterConfig(rank=4)])
async def test_publishing_shared_weights_copies_nothing(world, adapter):
    engine, trainer = joined(PolicyConfig(adapter=adapter), TrainerConfig(learning_rate=1e-3))
    try:
        assert engine.shares(trainer.policy.model)
        trainer.step(samples(world), world.images)
        counted = Allocations()
        with counted:
            await publish(trainer.policy, engine, 1)
        assert counted.peak == 0
        assert engine.version == 1
    finally:
        await engine.close()


async def test_an_engine_that_is_held_can_be_closed():
    engine, trainer = joined(PolicyConfig(), TrainerConfig())
    engine.hold()
    waiting = asyncio.create_task(engine.generate(Prompt((8, 9, 10)), Sampling(2, banned_ids=trainer.policy.banned_ids)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await engine.close()
    with pytest.raises(Exception, match="closed"):
        await waiting
