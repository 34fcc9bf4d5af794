"""HTTP clients for workflows, agents and judges. Invariant: there is one of each kind for an event loop, whoever asks; nobody who
gets one closes it.

In an episode that AReaL runs they are its own (`workflow_context`), which it closes with its loop. Elsewhere they are ours, made
when they are first asked for and closed by `close_clients`, which the last visitor of a place calls (`areal.place`). The httpx
client is one of the library that the installed `openai` takes.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from deskhand.errors import ConfigError
from deskhand.integrations.areal import installed_areal

TIMEOUT_S = 600.0
_own: dict[tuple[str, int], tuple[asyncio.AbstractEventLoop, Any]] = {}


async def httpx_client() -> Any:
    """An `AsyncClient` for `openai.AsyncOpenAI(http_client=...)` and for requests of one's own."""
    if installed_areal.is_supported_version():
        return await installed_areal.require_areal("infra.workflow_context", "its shared clients").get_httpx_client()
    return _ours("httpx", lambda: import_module("openai").DefaultAsyncHttpxClient(timeout=TIMEOUT_S))


async def aiohttp_session() -> Any:
    """A `ClientSession`. Raises `ConfigError` outside of AReaL where aiohttp, which Deskhand does not need, is not installed."""
    if installed_areal.is_supported_version():
        return await installed_areal.require_areal("infra.workflow_context", "its shared clients").get_aiohttp_session()
    try:
        library = import_module("aiohttp")
    except ModuleNotFoundError:
        raise ConfigError("aiohttp is not installed here; pip install aiohttp, or use httpx_client()") from None
    return _ours("aiohttp", lambda: library.ClientSession(timeout=library.ClientTimeout(total=TIMEOUT_S)))


async def close_clients() -> None:
    """Close those of this event loop that are ours. Idempotent."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _own if key[1] == id(loop)]:
        owner, client = _own.pop(key)
        if owner is loop:
            await (client.aclose() if hasattr(client, "aclose") else client.close())


def _ours(kind: str, make: Any) -> Any:
    loop = asyncio.get_running_loop()
    key = (kind, id(loop))
    owner, client = _own.get(key, (None, None))
    if owner is not loop:  # another loop may have had this address
        client = make()
        _own[key] = (loop, client)
    return client
