"""Weight transfer from the trainer to the engine.

Used by the recipes: `attach_engine` once, `push_weights` after every step.

Invariant: an engine never gets the weights of a partial update.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.types import Engine, SupportsLora


@runtime_checkable
class SupportsSharedWeights(Protocol):
    """Engine that can sample from the trainer's own tensors (`engines.hf`)."""

    def shares_weights_with(self, model: Any) -> bool: ...

    def pause_for_update(self) -> None: ...

    def paused_for_update(self) -> AbstractContextManager[None]: ...

    async def set_version(self, version: int) -> None: ...


@runtime_checkable
class SupportsImageFeatures(Protocol):
    """Engine in this process that keeps the features of images (`engines.hf`)."""

    def image_features(self, sha256: str) -> tuple[Tensor, ...] | None: ...

    def has_tower_of(self, model: Any) -> bool: ...


def attach_engine(trainer: Trainer, engine: Engine) -> None:
    """If engine and trainer share weights, pause the engine during updates (until `push_weights`) and without LoRA.

    With equal vision towers the trainer uses the image features of the engine while its own tower is frozen.
    """
    if isinstance(engine, SupportsSharedWeights) and engine.shares_weights_with(trainer.policy.model):
        trainer.optimizer.register_step_pre_hook(lambda *_: engine.pause_for_update())
        trainer.policy.pause_engine = engine.paused_for_update
    if isinstance(engine, SupportsImageFeatures) and engine.has_tower_of(trainer.policy.model):
        trainer.policy.known_features = engine.image_features


async def push_weights(policy: Policy, engine: Engine, version: int, executor: Executor | None = None) -> None:
    """Send the current weights to the engine as `version`; `executor` copies them.

    An engine that shares the weights gets only the version, one that supports LoRA gets the adapter.
    """
    run = partial(asyncio.get_running_loop().run_in_executor, executor)
    # The copy for a server is made in host memory: the device has no room for a second model.
    if isinstance(engine, SupportsSharedWeights) and engine.shares_weights_with(policy.model):
        await engine.set_version(version)
        return
    if isinstance(engine, SupportsLora) and engine.supports_lora:
        adapter = await run(partial(policy.adapter, tower=engine.supports_vision_lora))
        if adapter is not None:
            await engine.update_lora(version, adapter)
            return
    weights = await run(policy.snapshot if isinstance(engine, SupportsSharedWeights) else policy.checkpoint_weights)
    await engine.update_weights(version, weights)
