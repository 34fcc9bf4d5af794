"""Snapshots and publishing: whole, independent of later updates, under the checkpoint's own names."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from test_trainer import samples

from deskhand.config.trainer import LoraConfig, TrainerConfig
from deskhand.errors import ConfigError
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import push_weights


class Shelf:
    """Takes weights and keeps them, as an engine does between two decoding steps."""

    def __init__(self):
        self.taken = []

    async def update_weights(self, version, weights):
        self.taken.append((version, weights))


async def test_the_engine_gets_a_copy_that_later_updates_do_not_touch(make_policy, world):
    policy, engine = make_policy(), Shelf()
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    await push_weights(policy, engine, 3)  # pyright: ignore[reportArgumentType]
    Trainer(policy, TrainerConfig(learning_rate=1e-2)).step(samples(world), world.images)
    ((version, weights),) = engine.taken
    assert version == 3
    assert weights.keys() == before.keys()
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert any(not torch.equal(weights[name], tensor) for name, tensor in policy.model.state_dict().items())


async def test_weights_are_never_torn_while_updates_run(make_policy):
    """Updates that set all weights to one number, from a thread: every snapshot holds one number only."""
    policy, engine = make_policy(), Shelf()
    stop = threading.Event()
    parameters = list(policy.parameters().values())

    def updates():
        number = 0.0
        while not stop.is_set():
            number += 1.0
            with policy.lock, torch.no_grad():
                for parameter in parameters:
                    parameter.fill_(number)

    thread = threading.Thread(target=updates)
    thread.start()
    try:
        for version in range(20):
            await push_weights(policy, engine, version)  # pyright: ignore[reportArgumentType]
            await asyncio.sleep(0)
    finally:
        stop.set()
        thread.join()
    for version, weights in engine.taken[1:]:
        assert len({value for tensor in weights.values() for value in tensor.unique().tolist()}) == 1, version


def test_adapters_are_merged_into_the_snapshot(make_policy, world):
    policy = make_policy(lora=LoraConfig(rank=4, alpha=8))
    names = set(policy.parameters())
    assert names
    assert all("lora_" in name and "language_model" in name for name in names)
    Trainer(policy, TrainerConfig(learning_rate=1e-2)).step(samples(world), world.images)
    plain = make_policy()
    weights = policy.snapshot()
    assert weights.keys() == plain.model.state_dict().keys()
    changed = {name for name, tensor in plain.model.state_dict().items() if not torch.equal(tensor, weights[name])}
    assert changed
    assert all("_proj" in name for name in changed)
    plain.model.load_state_dict(weights)
    sequences = [row.sequence for row in samples(world)]
    for ours, theirs in zip(
        policy.logprobs(sequences, world.images), plain.logprobs(sequences, world.images), strict=True
    ):
        torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(theirs), atol=2e-5, rtol=0)


def test_an_adapter_for_projections_that_are_not_there_is_refused(make_policy):
    for targets in (("query_key_value",), ("q_proj", "query_key_value"), ("q_proj", "query_key_value", "mlp")):
        with pytest.raises(ConfigError, match=r"unknown projection query_key_value.*; available: down_proj, gate_proj"):
            make_policy(lora=LoraConfig(target_modules=targets))
    with pytest.raises(ConfigError, match="unknown projection nothing"):
        make_policy(lora=LoraConfig(target_modules=()))
