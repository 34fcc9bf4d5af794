"""Leases: epochs as fencing tokens, TTLs, the store on disk, and host capacity."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_pool import Painted, painted_pool
from patience import limit

from deskhand.desktop import host_capacity
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.lease_store import OWNER_DIED, LeaseExpired, LeaseStore
from deskhand.desktop.pool import DesktopPool
from deskhand.errors import ConfigError, InfrastructureError

SMALL = DesktopSpec("plain", 256, 192)


def test_epochs_are_unique_across_stores_on_one_file(tmp_path):
    seen: list[int] = []
    for _ in range(3):
        store = LeaseStore(tmp_path / "leases.sqlite")
        seen += [store.grant("someone", "a desktop") for _ in range(3)]
        store.end(seen[-1], "released")
        store.close()
    assert seen == sorted(set(seen))


def test_only_active_leases_pass_the_check():
    store = LeaseStore()
    epoch = store.grant("someone", "a desktop")
    store.check(epoch)
    assert store.end(epoch, "released")
    assert not store.end(epoch, "released")
    for wrong, why in ((epoch, "released"), (epoch + 1, "unknown lease"), (-1, "unknown lease")):
        with pytest.raises(LeaseExpired, match=f"lease {wrong} has ended: {why}; take a new lease"):
            store.check(wrong)
    store.close()
    with pytest.raises(LeaseExpired, match="closed"):
        store.check(epoch + 1)


OWNER = """
import sys, time
from pathlib import Path
from deskhand.desktop.lease_store import LeaseStore
store = LeaseStore(Path(sys.argv[1]))
for number in range(3):
    store.grant(f"episode {number}", "a desktop")
store.end(1, "released")
print("ready", flush=True)
time.sleep(60)
"""


def test_the_leases_of_a_killed_pool_are_found_and_fenced_by_the_next(tmp_path):
    path = tmp_path / "leases.sqlite"
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(path)], stdout=subprocess.PIPE, text=True, cwd=root)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    with pytest.raises(ConfigError, match="in use by another pool"):
        LeaseStore(path)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    store = LeaseStore(path)
    assert [(row.epoch, row.holder) for row in store.found] == [(2, "episode 1"), (3, "episode 2")]
    with pytest.raises(LeaseExpired, match=OWNER_DIED):
        store.check(2)
    with pytest.raises(LeaseExpired, match="released"):
        store.check(1)
    assert store.active() == []
    assert store.grant("next", "another") == 4
    store.close()


def test_a_file_that_is_not_a_lease_store_is_rejected_and_kept(tmp_path):
    path = tmp_path / "leases.sqlite"
    path.write_bytes(b"precious notes, and no database at all " * 40)
    with pytest.raises(ConfigError, match=r"leases.sqlite: not a lease store"):
        LeaseStore(path)
    assert path.read_bytes().startswith(b"precious")


async def test_leases_expire_without_heartbeats():
    async with DesktopPool(2, SMALL, prewarm=0) as pool:
        silent = await pool.lease(holder="silent", ttl_s=limit(0.4))
        heard = await pool.lease(holder="heard", ttl_s=limit(0.4))
        waiting = asyncio.create_task(pool.lease(holder="next"))
        deadline = time.monotonic() + limit(10)
        while not waiting.done():
            assert time.monotonic() < deadline
            pool.heartbeat(heard.epoch)
            await asyncio.sleep(0.05)
        assert pool.desktop_of(heard.epoch) is heard.desktop
        with pytest.raises(LeaseExpired, match="its holder did not renew it in time"):
            pool.desktop_of(silent.epoch)
        with pytest.raises(LeaseExpired):
            pool.heartbeat(silent.epoch)
        with pytest.raises(InfrastructureError):
            await silent.desktop.observe()
        assert (await waiting).epoch > heard.epoch
        await pool.release(silent)  # too late, and without effect on the next holder
        assert pool.desktop_of((await waiting).epoch)


async def test_a_lease_without_a_ttl_needs_no_heartbeat():
    async with DesktopPool(2, SMALL, prewarm=0) as pool:
        quiet = await pool.lease()
        loud = await pool.lease(ttl_s=0.1)
        await asyncio.sleep(0.5)
        assert pool.desktop_of(quiet.epoch)
        with pytest.raises(LeaseExpired):
            pool.desktop_of(loud.epoch)
        with pytest.raises(ConfigError, match=r"must be at least 0\.1, got 0\.01"):
            await pool.lease(ttl_s=0.01)


async def test_a_pool_stores_its_leases_on_disk(tmp_path):
    path = tmp_path / "leases.sqlite"
    async with DesktopPool(1, SMALL, prewarm=0, lease_store=LeaseStore(path)) as pool:
        await pool.release(await pool.lease(holder="first"))
        await pool.lease(holder="second")
    rows = sqlite3.connect(path).execute("SELECT holder, reason FROM leases ORDER BY epoch").fetchall()
    assert rows == [("first", "released"), ("second", "the pool was closed")]


async def test_an_unwritable_store_grants_no_lease_and_leaks_no_desktop(tmp_path):
    made: list[Painted] = []
    path = tmp_path / "leases.sqlite"
    pool = painted_pool(2, made)
    pool.lease_store = LeaseStore(path)
    async with pool:
        lease = await pool.lease()
        pool.lease_store._rows.execute("PRAGMA query_only=ON")  # writes fail, as on a full disk
        for _ in range(3):
            with pytest.raises(InfrastructureError, match=r"leases\.sqlite: cannot write the lease"):
                await pool.lease()
        await pool.release(lease)
        await pool.warm_up()
        assert all(desktop.closed for desktop in made), "what was not lent, and what was given back"
        pool.lease_store._rows.execute("PRAGMA query_only=OFF")
        assert (await pool.lease()).epoch > lease.epoch
    again = LeaseStore(path)
    assert [row.epoch for row in again.found] == [lease.epoch], "its end was not written down; the next pool ends it"
    again.close()


def test_more_desktops_than_fit_are_rejected_with_the_reason(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"100000 concurrent desktops do not fit on this machine \(.+\); request at most \d+"
    ):
        DesktopPool(99_999, SMALL, prewarm=1)
    monkeypatch.setattr(
        host_capacity,
        "available_memory_mib",
        lambda: host_capacity.RESERVED_MIB + 3 * host_capacity.DEFAULT_MEMORY_REQUEST_MIB,
    )
    DesktopPool(2, SMALL, prewarm=1)
    with pytest.raises(ConfigError, match=r"\(992 MiB of memory available, 160 MiB per desktop\); request at most 3"):
        DesktopPool(3, SMALL, prewarm=1)
    with pytest.raises(ConfigError, match="400 MiB per desktop"):
        DesktopPool(2, SMALL, prewarm=0, memory_request_mib=400)


def test_the_cgroup_limit_counts(monkeypatch, tmp_path):
    texts = {"/sys/fs/cgroup/memory.max": "1048576000", "/sys/fs/cgroup/memory.current": "524288000"}
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *a, **k: texts[str(path)] if str(path) in texts else real(path, *a, **k)
    )
    assert host_capacity.available_memory_mib() <= 500
