"""Pool: leases, prewarming, and failures."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_pool import Painted, painted_pool
from patience import limit

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import processes
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.pool import DesktopPool
from deskhand.errors import ConfigError, InfrastructureError

SMALL = DesktopSpec("plain", 256, 192)
OTHER = DesktopSpec("dark", 320, 240)


async def until(condition, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit(timeout_s)
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_prewarmed_desktops_are_leased_at_once_and_used_once():
    async with DesktopPool(2, SMALL, prewarm=1) as pool:
        seen: set[int] = set()
        for _ in range(4):
            assert await pool.warm_up() == 1
            before = set(processes.all_pids())
            lease = await pool.lease()
            frame = await lease.desktop.reset(SMALL)
            assert frame.size == (256, 192)
            pids = set(lease.desktop.processes())
            assert pids <= before, "it had to be started"
            assert not pids & seen
            seen |= pids
            await lease.desktop.push("mark", b"1")
            await pool.release(lease)


async def test_at_most_size_leases_are_active_and_epochs_rise():
    started: list[Painted] = []
    async with painted_pool(2, started) as pool:
        first, second = await pool.lease(), await pool.lease()
        third = asyncio.create_task(pool.lease())
        await asyncio.sleep(0.2)
        assert len(started) == 2
        await pool.release(first)
        await pool.release(first)
        assert (await third).epoch > second.epoch > first.epoch
        fourth = asyncio.create_task(pool.lease())
        await asyncio.sleep(0.1)
        assert len(started) == 3
        fourth.cancel()


async def test_prewarming_follows_demand():
    async with DesktopPool(1, SMALL, prewarm=1) as pool:
        for _ in range(3):
            await pool.release(await pool.lease(OTHER))
        await until(lambda: [spec for spec, _ in pool._ready] != [] and not pool._starting)
        await pool.release(await pool.lease(SMALL))
        await until(lambda: [spec for spec, _ in pool._ready] == [OTHER])


async def test_close_ends_leases_and_wakes_waiters():
    pool = DesktopPool(1, SMALL, prewarm=1)
    await pool.start()
    lease = await pool.lease()
    waiting = asyncio.create_task(pool.lease())
    await asyncio.sleep(0.05)
    await pool.close()
    with pytest.raises(InfrastructureError, match="closed"):
        await waiting
    with pytest.raises(InfrastructureError, match="closed"):
        await lease.desktop.observe()
    await pool.release(lease)
    await pool.close()


async def test_a_failed_start_reports_the_reason_and_frees_the_slot():
    class Broken(LocalDesktop):
        async def reset(self, spec):
            raise InfrastructureError("the display is gone")

    pool = DesktopPool(1, SMALL, prewarm=0, make=Broken)
    for _ in range(3):
        with pytest.raises(InfrastructureError, match=r"3 attempts .*size 1.*the display is gone"):
            await pool.lease()
    await pool.close()


async def test_a_missing_package_is_reported_first(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match="apt-get install xvfb"):
        await DesktopPool(1, SMALL, prewarm=0, make=lambda: LocalDesktop(isolation_level="plain")).start()


def test_invalid_sizes_are_config_errors():
    with pytest.raises(ConfigError, match="size"):
        DesktopPool(0)


async def test_a_slot_freed_for_a_cancelled_waiter_goes_to_the_next():
    async with painted_pool(1, []) as pool:
        lease = await pool.lease()
        first, second = (asyncio.create_task(pool.lease()) for _ in range(2))
        await asyncio.sleep(0.05)
        await pool.release(lease)
        first.cancel()
        async with asyncio.timeout(limit(5)):
            assert (await second).epoch > lease.epoch
