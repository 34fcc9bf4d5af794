"""Leases: epochs as fencing tokens, the store on disk, and host capacity."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from fake_pool import Painted, painted_pool
from patience import limit

from deskhand.desktop import host_capacity
from deskhand.desktop.base import DesktopSpec, Lease
from deskhand.desktop.lease_store import OWNER_DIED, LeaseStore
from deskhand.desktop.pool import DesktopPool
from deskhand.errors import ConfigError, InfrastructureError

SMALL = DesktopSpec("plain", 256, 192)


def test_epochs_are_unique_across_stores_on_one_file(tmp_path):
    seen: list[int] = []
    for _ in range(3):
        store = LeaseStore(tmp_path / "leases.sqlite")
        seen += [store.grant("a desktop") for _ in range(3)]
        store.end(seen[-1], "released")
        store.close()
    assert seen == sorted(set(seen))


OWNER = """
import sys, time
from pathlib import Path
from deskhand.desktop.lease_store import LeaseStore
store = LeaseStore(Path(sys.argv[1]))
for number in range(3):
    store.grant(f"desktop {number}")
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
    assert [(row.epoch, row.desktop) for row in store.found] == [(2, "desktop 1"), (3, "desktop 2")]
    assert [row.reason for row in store.rows()] == ["released", OWNER_DIED, OWNER_DIED]
    assert all(row.ended_at for row in store.rows())
    assert store.grant("another") == 4
    store.close()


def test_a_file_that_is_not_a_lease_store_is_rejected_and_unchanged(tmp_path):
    path = tmp_path / "leases.sqlite"
    path.write_bytes(b"precious notes, and no database at all " * 40)
    with pytest.raises(ConfigError, match=r"leases.sqlite: not a lease store"):
        LeaseStore(path)
    assert path.read_bytes().startswith(b"precious")


def test_a_store_on_a_disk_that_fails_is_not_called_damaged(tmp_path):
    (tmp_path / "leases.sqlite").mkdir()
    with pytest.raises(ConfigError, match=r"leases\.sqlite: cannot be written \(unable to open .*; free disk space"):
        LeaseStore(tmp_path / "leases.sqlite")


def test_a_damaged_lease_store_grants_no_epoch_twice(tmp_path):
    path = tmp_path / "leases.sqlite"
    store = LeaseStore(path)
    for number in range(400):
        store.grant(f"a desktop with a long name {number}")
    store.close()
    data = path.read_bytes()
    for start in range(4096, len(data), 4096):
        damaged = data[:start] + bytes(4096) + data[start + 4096 :]
        path.write_bytes(damaged)
        for _ in range(2):  # the first attempt gives the lock back
            with pytest.raises(ConfigError, match=r"leases\.sqlite: not a lease store, or damaged \(.*move it away"):
                LeaseStore(path)
        assert path.read_bytes() == damaged


async def test_a_pool_stores_its_leases_on_disk(tmp_path):
    path = tmp_path / "leases.sqlite"
    async with DesktopPool(1, SMALL, prewarm=0, lease_store=LeaseStore(path)) as pool:
        desktops = [(await pool.lease()).desktop]
        await pool.release(Lease(desktops[0], 1))
        await pool.release(Lease(desktops[0], 1))  # without effect
        desktops.append((await pool.lease()).desktop)
    labels = [desktop.label for desktop in desktops]
    rows = [(row.desktop, row.reason) for row in LeaseStore(path).rows()]
    assert rows == [(labels[0], "released"), (labels[1], "the pool was closed")]


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


async def test_a_lease_that_is_cancelled_while_its_desktop_closes_frees_the_slot(tmp_path, monkeypatch):
    store = LeaseStore(tmp_path / "leases.sqlite")
    store._rows.execute("PRAGMA query_only=ON")
    pool = painted_pool(1, [])
    pool.lease_store = store
    closing = asyncio.Event()

    async def hang(desktop: Painted) -> None:
        closing.set()
        await asyncio.sleep(60)

    with monkeypatch.context() as hanging:
        hanging.setattr(Painted, "close", hang)
        waiting = asyncio.create_task(pool.lease())
        await closing.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    store._rows.execute("PRAGMA query_only=OFF")
    async with asyncio.timeout(limit(5)):
        assert (await pool.lease()).epoch
    await pool.close()


def test_more_desktops_than_fit_are_rejected_with_the_reason(monkeypatch):
    refusal = r"100000 concurrent desktops do not fit on this machine \(.+\); request at most \d+"
    with pytest.raises(ConfigError, match=refusal):
        DesktopPool(99_999, SMALL, prewarm=1)
    memory_mib = host_capacity.RESERVED_MIB + 3 * host_capacity.DEFAULT_MEMORY_REQUEST_MIB
    monkeypatch.setattr(host_capacity, "available_memory_mib", lambda: memory_mib)
    DesktopPool(2, SMALL, prewarm=1)
    with pytest.raises(ConfigError, match=r"\(992 MiB of memory available, 160 MiB per desktop\); request at most 3"):
        DesktopPool(3, SMALL, prewarm=1)
    with pytest.raises(ConfigError, match="400 MiB per desktop"):
        DesktopPool(2, SMALL, prewarm=0, memory_request_mib=400)


def test_the_cgroup_limit_counts(monkeypatch, tmp_path):
    texts = {"/sys/fs/cgroup/memory.max": "1048576000", "/sys/fs/cgroup/memory.current": "524288000"}
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *a, **k: texts.get(str(path)) or real(path, *a, **k))
    assert host_capacity.available_memory_mib() <= 500
