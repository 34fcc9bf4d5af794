"""What a worker process holds for all its episodes. Invariant: a workflow object is cheap; what costs time (a tokenizer, the
check of a chat template, connections, desktops) is made once per process and event loop and is shared by every workflow with
equal settings.

AReaL makes a workflow anew for each task and runs it in the event loop of a thread, so nothing expensive can live in the object.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.agents.from_config import model_image_size
from deskhand.desktop.factory import local_desktop_factory
from deskhand.desktop.pool import DesktopPool
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.errors import ConfigError
from deskhand.integrations.areal.http_clients import close_clients
from deskhand.integrations.areal.installed_areal import when_loop_ends
from deskhand.integrations.areal.settings import Desktops, WorkflowSettings, import_by_path
from deskhand.integrations.areal.trajectory import TrajectoryLimits
from deskhand.models.load import load_processors
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer


@dataclass(frozen=True)
class Preprocessing:
    """How a checkpoint's conversations are written and its pictures prepared; safe to share between threads."""

    renderer: ChatRenderer
    image_processor: Any
    images: ImageCache
    pictures: ImageEncoder


@lru_cache(maxsize=4)
def reading(model: str, history: Any, screens_mib: int, sees: bool = True) -> Preprocessing:
    """Of the checkpoint `model`; its weights are not read. `sees`: whether it is shown pictures."""
    tokenizer, processor = load_processors(model, needs_images=sees)
    images = ImageCache(processor, encoded_bytes=screens_mib << 20)
    return Preprocessing(
        ChatRenderer(tokenizer, source=model, history=history), processor, images, ImageEncoder(processor)
    )


@dataclass
class WorkerResources:
    """The shared parts of one process and event loop."""

    settings: WorkflowSettings
    reading: Preprocessing
    pool: Any
    limits: TrajectoryLimits
    loop: asyncio.AbstractEventLoop
    groups: int = 0
    """Groups begun here; part of episodes' names."""
    outages: int = 0
    """Groups in a row that were lost to outages."""
    users: int = 0
    """Who is inside of `visiting`."""

    def agent(self, temperature: float) -> DesktopAgent:
        """An agent that asks as the settings say."""
        agent = self.settings.agent.model_copy(update={"temperature": temperature})
        return DesktopAgent(agent, model_image_size=model_image_size(self.reading.image_processor))


_places: dict[tuple[str, int], WorkerResources] = {}
_making: dict[int, asyncio.Lock] = {}


async def worker_resources(settings: WorkflowSettings) -> WorkerResources:
    """The place of these settings in this process and event loop. Raises `ConfigError` when it cannot be made."""
    loop = asyncio.get_running_loop()
    key = (settings.model_dump_json(), id(loop))
    async with _making.setdefault(id(loop), asyncio.Lock()):
        found = _places.get(key)
        if found is None or found.loop is not loop:
            found = _places[key] = await _make(settings, loop)

            async def close() -> None:
                await close_place(settings)

            when_loop_ends(close)
        return found


@asynccontextmanager
async def use_worker_resources(settings: WorkflowSettings, *, keep: bool) -> AsyncIterator[WorkerResources]:
    """The place of these settings. Unless it is to be kept (until AReaL ends the loop) the last visitor closes it: an event loop
    may end with its only episode."""
    place = await worker_resources(settings)
    place.users += 1
    try:
        yield place
    finally:
        place.users -= 1
        if not keep and not place.users:
            await close_place(settings)


async def close_place(settings: WorkflowSettings) -> None:
    """Give back what the place of these settings in this event loop holds, if there is one."""
    loop = asyncio.get_running_loop()
    found = _places.pop((settings.model_dump_json(), id(loop)), None)
    if found is not None and found.loop is loop:
        await found.pool.close()
    if not any(key[1] == id(loop) for key in _places):
        await close_clients()


async def _make(settings: WorkflowSettings, loop: asyncio.AbstractEventLoop) -> WorkerResources:
    read = await asyncio.to_thread(
        reading, settings.model, settings.engine.rewritten_history, settings.frame_cache_mib, settings.sees
    )
    limits = TrajectoryLimits(
        image_id=read.renderer.image_id,
        merge_size=read.images.merge_size,
        banned_ids=read.renderer.banned_ids,
        max_tokens=settings.engine.max_model_len,
        needs_picture=settings.sees,
    )
    return WorkerResources(settings, read, await _pool(settings.desktops), limits, loop)


async def _pool(desktops: Desktops) -> Any:
    if desktops.server_url is not None:
        return ServerPool(desktops.server_url, key_of(desktops))
    if desktops.factory is not None:
        return import_by_path(desktops.factory)()
    section = desktops.settings
    make = local_desktop_factory(section)
    pool = DesktopPool(desktops.local, spares=section.prewarm, make=make, expected_mib=section.memory_request_mib)
    await pool.start()
    return pool


def key_of(desktops: Desktops) -> str | None:
    """The bridge's key, from the environment. Raises `ConfigError` when the variable that is named is not set."""
    variable = desktops.api_key_env
    if variable is not None and not os.environ.get(variable):
        raise ConfigError(f"desktops.key_variable: the environment variable {variable} is not set in this process")
    return os.environ[variable] if variable is not None else None
