"""Leases of a desktop server: one desktop each, released when idle, refused with a reason when none is free."""

from __future__ import annotations

import asyncio
import re

import httpx2
import pytest
from patience import limit
from server_client import OWNER_KEY, SCREEN, bearer, bridge, leased

from deskhand.desktop.pool import DesktopPool
from deskhand.errors import ConfigError
from deskhand.server.active_leases import ActiveLeases
from deskhand.server.process import ServerConfig, serve_pool


async def test_a_full_server_refuses_and_leases_the_next_free_desktop():
    async with bridge() as running, leased(running) as client:
        full = await client.http.post("/leases", json={"wait_s": 0.1}, headers=bearer(OWNER_KEY))
        assert (full.status_code, full.headers["retry-after"]) == (503, "5")
        assert "all 1 desktops are leased" in full.json()["error"]
        waiting = asyncio.create_task(client.http.post("/leases", json={"wait_s": 20}, headers=bearer(OWNER_KEY)))
        await asyncio.sleep(0.1)
        await client.http.delete(f"/leases/{client.lease['lease']}")
        second = (await waiting).json()
        assert second["epoch"] > client.lease["epoch"]
        assert second["lease"] != client.lease["lease"]


async def test_the_wait_for_a_free_desktop_does_not_include_its_start():
    async with bridge() as running:
        address = f"http://127.0.0.1:{running.port}"
        async with httpx2.AsyncClient(base_url=address, headers=bearer(OWNER_KEY), timeout=limit(30)) as http:
            reply = await http.post("/leases", json={"wait_s": 0, "spec": {"width": 400, "height": 300}})
            assert reply.status_code == 201, reply.text


async def test_a_lease_has_the_requested_spec():
    async with bridge() as running:
        async with leased(running, spec={"name": "dark", "width": 400, "height": 300}) as client:
            assert (client.lease["spec"], client.lease["width"], client.lease["height"]) == ("dark", 400, 300)
            assert (await client.post("/screen_size")).json() == {"width": 400, "height": 300}
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", headers=bearer(OWNER_KEY)) as http:
            small, keys = {"width": 9, "height": 9}, "spec.with: .*; known keys: name, width, height, accessibility"
            for spec, part in (({"name": "no such"}, "no such"), (small, "screen size: must be"), ({"with": 9}, keys)):
                wrong = await http.post("/leases", json={"spec": spec})
                assert wrong.status_code == 400
                assert re.search(part, wrong.json()["error"])


async def test_an_idle_lease_is_released_and_a_busy_one_is_not():
    now = 1000.0
    async with DesktopPool(2, SCREEN, prewarm=0) as pool:
        book = ActiveLeases(pool, (1, 2), idle_s=60, clock=lambda: now)
        (idle, _), (busy, _) = await book.acquire(None, 30), await book.acquire(None, 30)
        now += 59
        await book.expire_idle()
        assert {held.id for held in book} == {idle.id, busy.id}
        with book.using(busy):
            now += 2
            await book.expire_idle()
            assert [held.id for held in book] == [busy.id]
        assert book.by_port(idle.port) is None
        now += 59
        await book.expire_idle()
        assert [held.id for held in book] == [busy.id]
        now += 2
        await book.expire_idle()
        assert list(book) == []
        await book.close()


async def test_a_port_is_reused_as_late_as_possible():
    async with DesktopPool(2, SCREEN, prewarm=0) as pool:
        book = ActiveLeases(pool, (1, 2), idle_s=60)
        first, _ = await book.acquire(None, 30)
        await book.release(first, "test")
        second, _ = await book.acquire(None, 30)
        assert (first.port, second.port) == (1, 2)
        await book.close()


async def test_desktops_are_closed_with_the_server():
    async with bridge() as running, leased(running) as client:
        desktop, pids = client.desktop, client.desktop.processes()
        assert pids
        await running.leases.close()
        assert list(running.leases) == []
    assert desktop.processes() == []


async def test_a_taken_port_is_named():
    async with DesktopPool(1, SCREEN, prewarm=0) as pool, serve_pool(pool, ServerConfig(port=0)) as running:
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{running.port}: cannot listen"):
            async with serve_pool(pool, ServerConfig(port=running.port)):
                pass
        with pytest.raises(ConfigError, match="--port 65535"):
            async with serve_pool(pool, ServerConfig(port=65535)):
                pass
