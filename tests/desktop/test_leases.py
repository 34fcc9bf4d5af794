"""Epochs as fencing tokens, silent holders, a book that outlives its pool, and a machine that has no more room."""

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


def test_an_epoch_is_given_out_once_also_by_the_next_book(tmp_path):
    seen: list[int] = []
    for _ in range(3):
        book = LeaseStore(tmp_path / "leases.sqlite")
        seen += [book.grant("someone", "a desktop") for _ in range(3)]
        book.end(seen[-1], "released")
        book.close()
    assert seen == sorted(set(seen))


def test_only_a_lease_that_goes_on_is_good_for_anything():
    book = LeaseStore()
    epoch = book.grant("someone", "a desktop")
    book.check(epoch)
    assert book.end(epoch, "released")
    assert not book.end(epoch, "released")
    for wrong, why in ((epoch, "released"), (epoch + 1, "there never was one"), (-1, "there never was one")):
        with pytest.raises(LeaseExpired, match=f"lease {wrong} is over: {why}; take a new lease"):
            book.check(wrong)
    book.close()
    with pytest.raises(LeaseExpired, match="closed"):
        book.check(epoch + 1)


OWNER = """
import sys, time
from pathlib import Path
from deskhand.desktop.leases import LeaseBook
book = LeaseBook(Path(sys.argv[1]))
for number in range(3):
    book.grant(f"episode {number}", "a desktop")
book.end(1, "released")
print("ready", flush=True)
time.sleep(60)
"""


def test_the_leases_of_a_killed_pool_are_found_and_fenced_by_the_next(tmp_path):
    path = tmp_path / "leases.sqlite"
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(path)], stdout=subprocess.PIPE, text=True, cwd=root)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    with pytest.raises(ConfigError, match="another pool keeps its leases here"):
        LeaseStore(path)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    book = LeaseStore(path)
    assert [(row.epoch, row.holder) for row in book.found] == [(2, "episode 1"), (3, "episode 2")]
    with pytest.raises(LeaseExpired, match=OWNER_DIED):
        book.check(2)
    with pytest.raises(LeaseExpired, match="released"):
        book.check(1)
    assert book.active() == []
    assert book.grant("next", "another") == 4
    book.close()


def test_a_file_that_is_no_book_is_refused_and_kept(tmp_path):
    path = tmp_path / "leases.sqlite"
    path.write_bytes(b"precious notes, and no database at all " * 40)
    with pytest.raises(ConfigError, match=r"leases.sqlite: not a book of leases"):
        LeaseStore(path)
    assert path.read_bytes().startswith(b"precious")


async def test_a_holder_that_falls_silent_loses_its_desktop_and_one_that_is_heard_keeps_it():
    async with DesktopPool(2, SMALL, spares=0) as pool:
        silent = await pool.lease(holder="silent", ttl_s=limit(0.4))
        heard = await pool.lease(holder="heard", ttl_s=limit(0.4))
        waiting = asyncio.create_task(pool.lease(holder="next"))
        deadline = time.monotonic() + limit(10)
        while not waiting.done():
            assert time.monotonic() < deadline
            pool.heartbeat(heard.epoch)
            await asyncio.sleep(0.05)
        assert pool.desktop_of(heard.epoch) is heard.desktop
        with pytest.raises(LeaseExpired, match="its holder fell silent"):
            pool.desktop_of(silent.epoch)
        with pytest.raises(LeaseExpired):
            pool.heartbeat(silent.epoch)
        with pytest.raises(InfrastructureError):
            await silent.desktop.observe()
        assert (await waiting).epoch > heard.epoch
        await pool.release(silent)  # too late, and without effect on the next holder
        assert pool.desktop_of((await waiting).epoch)


async def test_a_lease_without_a_time_to_live_needs_no_heartbeat():
    async with DesktopPool(2, SMALL, spares=0) as pool:
        quiet = await pool.lease()
        loud = await pool.lease(ttl_s=0.1)
        await asyncio.sleep(0.5)
        assert pool.desktop_of(quiet.epoch)
        with pytest.raises(LeaseExpired):
            pool.desktop_of(loud.epoch)
        with pytest.raises(ConfigError, match=r"0\.1 or more"):
            await pool.lease(ttl_s=0.01)


async def test_a_pool_keeps_its_book_on_disk(tmp_path):
    path = tmp_path / "leases.sqlite"
    async with DesktopPool(1, SMALL, spares=0, book=LeaseStore(path)) as pool:
        await pool.release(await pool.lease(holder="first"))
        await pool.lease(holder="second")
    rows = sqlite3.connect(path).execute("SELECT holder, reason FROM leases ORDER BY epoch").fetchall()
    assert rows == [("first", "released"), ("second", "the pool was closed")]


async def test_a_book_that_cannot_be_written_grants_nothing_leaks_nothing_and_ends_every_lease(tmp_path):
    made: list[Painted] = []
    path = tmp_path / "leases.sqlite"
    pool = painted_pool(2, made)
    pool.book = LeaseStore(path)
    async with pool:
        lease = await pool.lease()
        pool.book._rows.execute("PRAGMA query_only=ON")  # writes fail, as on a full disk
        for _ in range(3):
            with pytest.raises(InfrastructureError, match=r"leases\.sqlite: the lease cannot be written down"):
                await pool.lease()
        await pool.release(lease)
        await pool.warm_up()
        assert all(desktop.closed for desktop in made), "what was not lent, and what was given back"
        pool.book._rows.execute("PRAGMA query_only=OFF")
        assert (await pool.lease()).epoch > lease.epoch
    again = LeaseStore(path)
    assert [row.epoch for row in again.found] == [lease.epoch], "its end was not written down; the next pool ends it"
    again.close()


def test_more_desktops_than_the_machine_has_room_for_are_refused_with_the_figures(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"100000 desktops at a time do not fit on this machine, \d+ do \(.+\); ask for fewer"
    ):
        DesktopPool(99_999, SMALL, spares=1)
    monkeypatch.setattr(
        host_capacity, "available_memory_mib", lambda: host_capacity.RESERVED_MIB + 3 * host_capacity.EXPECTED_MIB
    )
    DesktopPool(2, SMALL, spares=1)
    with pytest.raises(ConfigError, match=r"3 do \(992 MiB of memory are available, 160 each\)"):
        DesktopPool(3, SMALL, spares=1)
    with pytest.raises(ConfigError, match="400 each"):
        DesktopPool(2, SMALL, spares=0, expected_mib=400)


def test_the_bound_of_a_container_counts(monkeypatch, tmp_path):
    texts = {"/sys/fs/cgroup/memory.max": "1048576000", "/sys/fs/cgroup/memory.current": "524288000"}
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *a, **k: texts[str(path)] if str(path) in texts else real(path, *a, **k)
    )
    assert host_capacity.available_memory_mib() <= 500
