"""Expensive objects shared by all workflows of a worker process: tokenizer, chat template, connections, desktops.

AReaL recreates a workflow for each task and runs it in the event loop of a thread, so these are stored per process,
event loop and settings. Entry points: `worker_resources` and `use_worker_resources`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from deskhand.actions.formats.smart_resize import model_image_size
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.factory import build_remote_pool, local_desktop_factory
from deskhand.desktop.pool import DesktopPool
from deskhand.desktop.remote.quota import QuotaManager
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
    """Rendering and image preparation of a checkpoint; thread-safe."""

    renderer: ChatRenderer
    image_processor: Any
    images: ImageCache
    encoder: ImageEncoder


@lru_cache(maxsize=4)
def load_preprocessing(model: str, history: Any, frame_cache_mib: int, uses_images: bool = True) -> Preprocessing:
    """Load the preprocessing of `model` without its weights."""
    tokenizer, processor = load_processors(model, needs_images=uses_images)
    images = ImageCache(processor, encoded_bytes=frame_cache_mib << 20)
    return Preprocessing(
        ChatRenderer(tokenizer, source=model, history=history), processor, images, ImageEncoder(processor)
    )


@dataclass
class WorkerResources:
    """Shared objects of one process and event loop."""

    settings: WorkflowSettings
    preprocessing: Preprocessing
    pool: Any
    limits: TrajectoryLimits
    loop: asyncio.AbstractEventLoop
    groups: int = 0
    """Groups started here."""
    users: int = 0
    """Users inside `use_worker_resources`."""

    def agent(self, temperature: float) -> DesktopAgent:
        agent = self.settings.agent.model_copy(update={"temperature": temperature})
        return DesktopAgent(agent, model_image_size=model_image_size(self.preprocessing.image_processor))


_resources: dict[tuple[str, int], WorkerResources] = {}
_locks: dict[int, asyncio.Lock] = {}


async def worker_resources(settings: WorkflowSettings) -> WorkerResources:
    """Return the resources for these settings in this process and event loop. Raises `ConfigError`."""
    loop = asyncio.get_running_loop()
    key = (settings.model_dump_json(), id(loop))
    async with _locks.setdefault(id(loop), asyncio.Lock()):
        found = _resources.get(key)
        if found is None or found.loop is not loop:
            found = _resources[key] = await _make(settings, loop)

            when_loop_ends(partial(close_worker_resources, settings))
        return found


@asynccontextmanager
async def use_worker_resources(settings: WorkflowSettings, *, keep: bool) -> AsyncIterator[WorkerResources]:
    """Use the resources for these settings. Unless `keep`, the last user closes them."""
    resources = await worker_resources(settings)
    resources.users += 1
    try:
        yield resources
    finally:
        resources.users -= 1
        if not keep and not resources.users:
            await close_worker_resources(settings)


async def close_worker_resources(settings: WorkflowSettings) -> None:
    """Close the resources for these settings in this event loop, if there are any."""
    loop = asyncio.get_running_loop()
    found = _resources.pop((settings.model_dump_json(), id(loop)), None)
    if found is not None and found.loop is loop:
        await found.pool.close()
    if not any(key[1] == id(loop) for key in _resources):
        await close_clients()


async def _make(settings: WorkflowSettings, loop: asyncio.AbstractEventLoop) -> WorkerResources:
    engine, uses_images = settings.engine, settings.uses_images
    preprocessing = await asyncio.to_thread(
        load_preprocessing, settings.model, engine.rewritten_history, settings.frame_cache_mib, uses_images
    )
    renderer, merge_size = preprocessing.renderer, preprocessing.images.merge_size
    limits = TrajectoryLimits(
        renderer.image_id, merge_size, renderer.banned_ids, engine.max_model_len, needs_picture=uses_images
    )
    return WorkerResources(settings, preprocessing, await _pool(settings.desktops), limits, loop)


async def _pool(desktops: Desktops) -> Any:
    if desktops.server_url is not None:
        return ServerPool(desktops.server_url, server_api_key(desktops))
    if desktops.factory is not None:
        return import_by_path(desktops.factory)()
    section = desktops.settings
    if section.urls:
        return build_remote_pool(section, DesktopSpec(), QuotaManager())
    make = local_desktop_factory(section)
    pool = DesktopPool(
        desktops.local, prewarm=section.prewarm, make=make, memory_request_mib=section.memory_request_mib
    )
    await pool.start()
    return pool


def server_api_key(desktops: Desktops) -> str | None:
    """Return the server's key from the environment. Raises `ConfigError` if the variable is not set."""
    variable = desktops.api_key_env
    if variable is not None and not os.environ.get(variable):
        raise ConfigError(f"desktops.api_key_env: the environment variable {variable} is not set in this process")
    return os.environ[variable] if variable is not None else None
