"""Outside of AReaL there is one client for an event loop, of the kind that the agents' library takes, and places close it."""

from __future__ import annotations

import asyncio

import areal_workflows
import openai
import pytest

from deskhand.areal import clients
from deskhand.areal.place import use_worker_resources
from deskhand.areal.settings import WorkflowSettings
from deskhand.errors import ConfigError


async def test_whoever_asks_in_a_loop_gets_the_same_client_until_the_last_visitor_leaves():
    settings = WorkflowSettings.of({**areal_workflows.SETTINGS, "model": "tiny"}, {})
    async with use_worker_resources(settings, keep=False):
        first = await clients.httpx_client()
        assert await clients.httpx_client() is first
        openai.AsyncOpenAI(base_url="http://h/v1", api_key="k", http_client=first)
    assert first.is_closed
    assert not clients._own
    again = await clients.httpx_client()
    assert again is not first
    await clients.close_clients()
    await clients.close_clients()
    assert again.is_closed


def test_another_loop_gets_another_client():
    seen = []

    async def once():
        seen.append(await clients.httpx_client())
        await clients.close_clients()

    asyncio.run(once())
    asyncio.run(once())
    assert seen[0] is not seen[1]


async def test_a_library_that_is_not_needed_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "aiohttp", None)
    with pytest.raises(ConfigError, match="pip install aiohttp"):
        await clients.aiohttp_session()
