"""Outside of AReaL there is one client for an event loop, of the kind that the agents' library takes, and places close
it."""

from __future__ import annotations

import asyncio

import areal_workflows
import openai
import pytest

from deskhand.errors import ConfigError
from deskhand.integrations.areal import http_clients
from deskhand.integrations.areal.settings import WorkflowSettings
from deskhand.integrations.areal.worker_resources import use_worker_resources


async def test_whoever_asks_in_a_loop_gets_the_same_client_until_the_last_visitor_leaves():
    settings = WorkflowSettings.of({**areal_workflows.SETTINGS, "model": "tiny"}, {})
    async with use_worker_resources(settings, keep=False):
        first = await http_clients.httpx_client()
        assert await http_clients.httpx_client() is first
        openai.AsyncOpenAI(base_url="http://h/v1", api_key="k", http_client=first)
    assert first.is_closed
    assert not http_clients._clients
    again = await http_clients.httpx_client()
    assert again is not first
    await http_clients.close_clients()
    await http_clients.close_clients()
    assert again.is_closed


def test_another_loop_gets_another_client():
    seen = []

    async def once():
        seen.append(await http_clients.httpx_client())
        await http_clients.close_clients()

    asyncio.run(once())
    asyncio.run(once())
    assert seen[0] is not seen[1]


async def test_a_library_that_is_not_needed_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "aiohttp", None)
    with pytest.raises(ConfigError, match="pip install aiohttp"):
        await http_clients.aiohttp_session()
