"""Weights from the trainer to the engine. Invariant: an engine gets the weights of one moment, never half of an update."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.types import Engine, SupportsLora


@runtime_checkable
class SupportsSharedWeights(Protocol):
    """An engine that can sample from a trainer's own tensors (`engines.hf`)."""

    def shares(self, model: Any) -> bool: ...

    def hold(self) -> None: ...

    def held(self) -> AbstractContextManager[None]: ...

    async def adopt(self, version: int) -> None: ...


def attach_engine(trainer: Trainer, engine: Engine) -> None:
    """Where engine and trainer share their weights, stop the engine before each update (`publish` lets it go on) and while adapters
    are off."""
    if isinstance(engine, SupportsSharedWeights) and engine.shares(trainer.policy.model):
        trainer.optimizer.register_step_pre_hook(lambda *_: engine.hold())
        trainer.policy.aside = engine.held


async def push_weights(policy: Policy, engine: Engine, version: int) -> None:
    """Hand the weights of now to the engine: a copy, made outside the event loop and between two updates, or (where the engine
    shares them) only the word that they are those of `version`. An engine that takes adapters gets the adapter alone. A copy for a
    server is made in this machine's memory: the device has no room for a second model."""
    if isinstance(engine, SupportsSharedWeights) and engine.shares(policy.model):
        await engine.adopt(version)
        return
    if isinstance(engine, SupportsLora) and engine.supports_lora:
        adapter = await asyncio.to_thread(policy.adapter, tower=engine.supports_vision_lora)
        if adapter is not None:
            await engine.update_lora(version, adapter)
            return
    weights = await asyncio.to_thread(policy.snapshot, None if isinstance(engine, SupportsSharedWeights) else "cpu")
    await engine.update_weights(version, weights)
