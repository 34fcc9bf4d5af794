"""An engine that samples from the trainer's own weights pauses during updates and follows their version."""

from __future__ import annotations

import asyncio
import copy

import numpy as np
import pytest
import torch
from conftest import _BUILT, BANNED
from test_trainer import samples

from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import LoraConfig, PolicyConfig, TrainerConfig
from deskhand.engines.hf import HfEngine
from deskhand.models.load import LoadedModel
from deskhand.recorder.graph import Sequence
from deskhand.trainer.meta_trace import AllocationMeter
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import attach_engine, push_weights
from deskhand.types import Prompt, Sampling


def joined(policy_config: PolicyConfig, trainer_config: TrainerConfig):
    model = copy.deepcopy(_BUILT)
    engine = HfEngine(LoadedModel(model, None, None, "qwen3_vl", "random"), EngineConfig(max_model_len=400))  # type: ignore[arg-type]
    trainer = Trainer(Policy(model, policy_config, BANNED), trainer_config)
    attach_engine(trainer, engine)
    return engine, trainer


@pytest.mark.parametrize("adapter", [None, LoraConfig(rank=4)])
async def test_publishing_shared_weights_copies_nothing(world, adapter):
    engine, trainer = joined(PolicyConfig(lora=adapter), TrainerConfig(learning_rate=1e-3))
    try:
        assert engine.shares_weights_with(trainer.policy.model)
        trainer.step(samples(world), world.images)
        counted = AllocationMeter()
        with counted:
            await push_weights(trainer.policy, engine, 1)
        assert counted.peak == 0
        assert engine.version == 1
    finally:
        await engine.close()


@pytest.mark.parametrize("adapter", [None, LoraConfig(rank=4)])
async def test_every_token_was_sampled_by_the_weights_of_its_version(world, adapter):
    """Requests without end while the trainer takes steps of two updates.

    Log-probs are computed anew from each version.
    """
    penalty = 0.1 if adapter else 0.0  # with adapters the reference is the model without them
    settings = TrainerConfig(learning_rate=3e-2, num_minibatches=2, torch_threads=1, kl_loss_coef=penalty)
    engine, trainer = joined(PolicyConfig(lora=adapter), settings)
    policy, kept, done = trainer.policy, {}, []
    over = False

    async def ask(number: int) -> None:
        asked = 0
        while not over:
            words = tuple(int(word) for word in np.random.default_rng([number, asked]).integers(8, 48, 30))
            sampling = Sampling(12, banned_ids=policy.banned_ids, seed=asked * 100 + number)
            done.append((words, await engine.generate(Prompt(words), sampling)))
            asked += 1

    async def sampled(version: int) -> None:
        """Until a request was answered by that version alone."""
        while not any(set(each.versions) == {version} for _, each in done):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def keep(version: int) -> None:
        kept[version] = {name: value.clone() for name, value in policy.model.state_dict().items()}

    try:
        keep(0)
        asking = [asyncio.create_task(ask(number)) for number in range(3)]
        await sampled(0)
        for version in range(1, 5):
            await asyncio.to_thread(trainer.step, samples(world), world.images)
            keep(version)
            await push_weights(policy, engine, version)
            await sampled(version)
        over = True
        await asyncio.gather(*asking)
    finally:
        await engine.close()
    whole = [(words, each) for words, each in done if len(set(each.versions)) == 1]
    assert {each.versions[0] for _, each in whole} == set(range(5))
    for version, weights in kept.items():
        policy.model.load_state_dict(weights)
        for words, each in (pair for pair in whole if pair[1].versions[0] == version):
            count, ids = len(each.token_ids), (*words, *each.token_ids)
            marks = (False,) * len(words) + (True,) * count
            versions = tuple(int(mark) - 1 for mark in marks)
            (again,) = policy.logprobs([Sequence(ids, marks, (0.0,) * len(ids), versions, (), ())], {})
            torch.testing.assert_close(torch.tensor(again), torch.tensor(each.logprobs), atol=1e-4, rtol=0)


async def test_an_engine_that_is_held_can_be_closed():
    engine, trainer = joined(PolicyConfig(), TrainerConfig())
    engine.pause_for_update()
    waiting = asyncio.create_task(
        engine.generate(Prompt((8, 9, 10)), Sampling(2, banned_ids=trainer.policy.banned_ids))
    )
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await engine.close()
    with pytest.raises(Exception, match="closed"):
        await waiting
