"""Weights from the trainer to the engine. Invariant: an engine gets the weights of one moment, never half of an update."""

from __future__ import annotations

import asyncio

from deskhand.engines.base import Engine
from deskhand.training.policy import Policy


async def publish(policy: Policy, engine: Engine, version: int) -> None:
    """Copy the policy's weights, outside the event loop and between two updates, and hand the copy to the engine."""
    weights = await asyncio.to_thread(policy.snapshot)
    await engine.publish(version, weights)
