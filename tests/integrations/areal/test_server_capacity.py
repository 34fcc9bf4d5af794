"""Before anything starts the bridge is asked whether it lends enough desktops."""

from __future__ import annotations

import asyncio

import fake_desktop
import pytest

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.pool import DesktopPool
from deskhand.errors import ConfigError
from deskhand.integrations.areal.entrypoint import check_server
from deskhand.integrations.areal.settings import Desktops
from deskhand.server.process import ServerConfig, serve_pool

KEY = "an-owner-key-of-this-test"


async def test_a_server_with_too_few_desktops_is_refused_before_the_start(monkeypatch):
    spec = DesktopSpec(width=64, height=48)
    async with (
        DesktopPool(3, spec, prewarm=0, make=fake_desktop.PaintedDesktop, memory_request_mib=1) as pool,
        serve_pool(pool, ServerConfig(port=0, admin_key=KEY)) as running,
    ):
        desktops = Desktops(server_url=f"http://127.0.0.1:{running.port}", api_key_env="BRIDGE_KEY")
        with pytest.raises(ConfigError, match="BRIDGE_KEY is not set"):
            await asyncio.to_thread(check_server, desktops, 3, ("basics",))
        monkeypatch.setenv("BRIDGE_KEY", KEY)
        await asyncio.to_thread(check_server, desktops, 3, ("basics",))
        with pytest.raises(ConfigError, match="has 3 desktops"):
            await asyncio.to_thread(check_server, desktops, 4, ("basics",))
        monkeypatch.setenv("BRIDGE_KEY", "another key, of nobody")
        with pytest.raises(ConfigError, match="does not respond") as caught:
            await asyncio.to_thread(check_server, desktops, 3, ("basics",))
        assert "another key" not in str(caught.value)
    with pytest.raises(ConfigError, match="run deskhand serve"):
        await asyncio.to_thread(check_server, desktops, 3, ("basics",))
