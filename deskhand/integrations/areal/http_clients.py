"""Shared HTTP clients for workflows, agents and rewards: one of each kind per event loop.

In an AReaL episode they are AReaL's, which closes them with its loop. Otherwise they are created on first use and
closed by `close_clients`, called when the last user of `worker_resources` leaves. Callers do not close them.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from deskhand.errors import ConfigError
from deskhand.integrations.areal import installed_areal

TIMEOUT_S = 600.0
_clients: dict[tuple[str, int], tuple[asyncio.AbstractEventLoop, Any]] = {}


async def httpx_client() -> Any:
    """Return an `AsyncClient` for `openai.AsyncOpenAI(http_client=...)` and other requests."""
    if installed_areal.is_running_episode():
        return await installed_areal.require_areal("infra.workflow_context", "its shared clients").get_httpx_client()
    return _shared("httpx", lambda: import_module("openai").DefaultAsyncHttpxClient(timeout=TIMEOUT_S))


async def aiohttp_session() -> Any:
    """Return a `ClientSession`. Raises `ConfigError` outside of AReaL if aiohttp is not installed."""
    if installed_areal.is_running_episode():
        return await installed_areal.require_areal("infra.workflow_context", "its shared clients").get_aiohttp_session()
    try:
        library = import_module("aiohttp")
    except ModuleNotFoundError:
        raise ConfigError("aiohttp is not installed; pip install aiohttp, or use httpx_client()") from None
    return _shared("aiohttp", lambda: library.ClientSession(timeout=library.ClientTimeout(total=TIMEOUT_S)))


async def close_clients() -> None:
    """Close this event loop's own clients. Idempotent."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _clients if key[1] == id(loop)]:
        owner, client = _clients.pop(key)
        if owner is loop:
            await (client.aclose() if hasattr(client, "aclose") else client.close())


def _shared(kind: str, make: Any) -> Any:
    loop = asyncio.get_running_loop()
    key = (kind, id(loop))
    owner, client = _clients.get(key, (None, None))
    if owner is not loop:  # a new loop may reuse the id of a closed one
        client = make()
        _clients[key] = (loop, client)
    return client
