"""Plain agents for AReaL's proxy that fail in known ways, importable and picklable."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, ClassVar

from deskhand.errors import InfrastructureError
from deskhand.integrations.areal.agent import OSWorldAgent


class Watched(OSWorldAgent):
    """Keeps what it returned."""

    rewards: ClassVar[list[float]] = []

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        reward = await super().run(data, **extra)
        Watched.rewards.append(reward)
        return reward


class Failing(OSWorldAgent):
    """Its desktop is lost after the model was asked."""

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        await super().run(data, **extra)
        raise InfrastructureError("told to fail")


class FailingSecond(OSWorldAgent):
    """Every second episode fails."""

    numbers: ClassVar[Any] = count(1)

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        number = next(self.numbers)
        reward = await super().run(data, **extra)
        if number % 2 == 0:
            raise InfrastructureError("told to fail")
        return reward


class Late(OSWorldAgent):
    """Takes longer than it may."""

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        async with asyncio.timeout(2):
            await asyncio.sleep(60)
        return await super().run(data, **extra)
