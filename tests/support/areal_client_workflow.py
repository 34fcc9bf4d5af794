"""A workflow that asks for clients and judges in an event loop of AReaL's and keeps what it got. Imported there
alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import bad_judges
from areal.api.reward_api import AsyncRewardWrapper  # pyright: ignore[reportMissingImports]
from areal.api.workflow_api import RolloutWorkflow  # pyright: ignore[reportMissingImports]
from areal.infra import workflow_context  # pyright: ignore[reportMissingImports]

from deskhand.errors import EvaluatorError
from deskhand.integrations.areal.http_clients import aiohttp_session, close_clients, httpx_client
from deskhand.integrations.areal.reward_process import ProcessReward, PureReward


async def tried(judge: Any, folder: Path, name: str, then: str) -> list[Any]:
    """What a judge gave or raised, and how often it was asked."""
    path = folder / name
    try:
        value = await judge(str(path), then)
    except EvaluatorError as error:
        value = str(error)
    return [value, path.read_text().count("\n")]


class Habits(RolloutWorkflow):
    found: ClassVar[dict[str, Any]] = {}

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> None:
        folder = Path(data["folder"])
        theirs = await workflow_context.get_httpx_client(), await workflow_context.get_aiohttp_session()
        shared = [await httpx_client() is theirs[0], await aiohttp_session() is theirs[1]]
        await close_clients()
        late = {"timeout_seconds": 1.5, "max_retries": 1}
        judges_asked = {
            "theirs late": (AsyncRewardWrapper(bad_judges.counted, max_workers=2, **late), "nap"),
            "outside late": (ProcessReward(bad_judges.counted, timeout_s=1.5), "nap"),
            "outside": (ProcessReward(bad_judges.counted, timeout_s=20), "zero"),
            "pure late": (PureReward(AsyncRewardWrapper(bad_judges.counted, max_workers=3, **late)), "nap"),
            "pure": (PureReward(bad_judges.counted, timeout_s=20, workers=1), "zero"),
        }
        given = await asyncio.gather(
            *(tried(judge, folder, name, then) for name, (judge, then) in judges_asked.items())
        )
        shared += [not theirs[0].is_closed, not theirs[1].closed]
        Habits.found |= {"shared": shared, **dict(zip(judges_asked, given, strict=True))}
