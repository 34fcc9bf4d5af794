"""An engine that samples from the trainer's own weights pauses during updates and follows their version."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
import torch
from small_policy import BANNED, BUILT, encoded_images
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


def joined(policy_config: PolicyConfig, trainer_config: TrainerConfig, *, own: Any = None):
    """Engine and trainer of one model; `own` is the engine's, if it has another."""
    model = copy.deepcopy(BUILT)
    loaded = LoadedModel(own or model, None, None, "qwen3_vl", "random")  # type: ignore[arg-type]
    engine = HfEngine(loaded, EngineConfig(max_model_len=400))
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


async def ask_for_all(engine: HfEngine, world) -> None:
    """Let the engine see every image of the episodes."""
    for graph in world.graphs:
        for call in graph.calls:
            shown = {span.sha256: world.images[span.sha256] for span in call.spans}
            await engine.generate(Prompt(call.prompt_ids, call.spans, shown), Sampling(1, banned_ids=BANNED, seed=0))


@pytest.mark.parametrize("shared", [True, False])
async def test_the_trainer_uses_the_features_that_the_engine_has_computed(world, shared):
    settings, own = PolicyConfig(train_vision=False), None if shared else copy.deepcopy(BUILT)
    engine, trainer = joined(settings, TrainerConfig(learning_rate=1e-3, ppo_epochs=2), own=own)
    alone = Trainer(Policy(copy.deepcopy(BUILT), settings, BANNED), trainer.config)
    rows, counts = samples(world), encoded_images(trainer.policy)
    sequences = [sample.sequence for sample in rows]
    try:
        await ask_for_all(engine, world)
        assert sum(counts) == (len(world.images) if shared else 0)
        counts.clear()
        for version, largest in ((1, 1e-5), (2, 1e-4)):  # an update by Adam enlarges differences of rounding
            for own, other in zip(
                trainer.policy.logprobs(sequences, world.images),
                alone.policy.logprobs(sequences, world.images),
                strict=True,
            ):
                np.testing.assert_allclose(own, other, atol=largest)
            losses = [await asyncio.to_thread(one.step, rows, world.images) for one in (trainer, alone)]
            assert losses[0].loss == pytest.approx(losses[1].loss, abs=1e-6)
            await push_weights(trainer.policy, engine, version)
        assert not counts, "no image was encoded again"
    finally:
        await engine.close()


async def test_features_of_another_tower_are_not_used(world):
    other = copy.deepcopy(BUILT)
    with torch.no_grad():
        next(other.model.visual.parameters()).view(-1)[0].add_(1e-3)
    engine, trainer = joined(PolicyConfig(train_vision=False), TrainerConfig(), own=other)
    counts = encoded_images(trainer.policy)
    try:
        await ask_for_all(engine, world)
        trainer.policy.logprobs([sample.sequence for sample in samples(world)], world.images)
        assert sum(counts) == len(world.images)
    finally:
        await engine.close()


async def test_images_that_the_engine_does_not_have_are_encoded(world):
    engine, trainer = joined(PolicyConfig(train_vision=False), TrainerConfig())
    sequences, counts = [sample.sequence for sample in samples(world)], encoded_images(trainer.policy)
    expected = trainer.policy.logprobs(sequences, world.images)
    assert sum(counts) == len(world.images)
    try:
        call = world.graphs[0].calls[0]
        shown = {span.sha256: world.images[span.sha256] for span in call.spans}
        await engine.generate(Prompt(call.prompt_ids, call.spans, shown), Sampling(1, banned_ids=BANNED, seed=0))
        counts.clear()
        for own, other in zip(trainer.policy.logprobs(sequences, world.images), expected, strict=True):
            np.testing.assert_allclose(own, other, atol=1e-5)
        assert sum(counts) == len(world.images) - len(shown)
    finally:
        await engine.close()


@pytest.mark.parametrize("settings", [PolicyConfig(), PolicyConfig(lora=LoraConfig(rank=2, vision=True))])
async def test_features_are_not_shared_if_the_vision_tower_is_trained(world, settings):
    engine, trainer = joined(settings, TrainerConfig(learning_rate=1e-3))
    sequences = [sample.sequence for sample in samples(world)]
    try:
        await ask_for_all(engine, world)
        counts = encoded_images(trainer.policy)
        trainer.policy.logprobs(sequences, world.images)
        assert sum(counts) == len(world.images)
        frozen = trainer.policy.copy(frozen=True)  # its tower is that of this version, the engine's goes on
        counts.clear()
        frozen.logprobs(sequences, world.images)
        assert sum(counts) == len(world.images)
    finally:
        await engine.close()
