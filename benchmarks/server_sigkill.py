"""SIGKILL of a desktop server at work: its episodes are errored, nothing is left, and its successor fences all leases.

The server is `deskhand serve` in its own process; episodes play over HTTP. Its successor starts on the same port and
lease database while clients still retry, releases the old leases, rejects their keys and issues higher epochs.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import httpx2

from benchmarks.episodes import staged
from benchmarks.free_ports import free_port
from benchmarks.recording import EASY
from benchmarks.sigkill_report import GONE_WITHIN_S, Observed, Tally, gone, judge
from benchmarks.thresholds import ROOT
from deskhand.desktop.base import DesktopSpec, Lease, StageableDesktop
from deskhand.desktop.local import processes
from deskhand.desktop.local.runtime_dir import tmpfs
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.errors import InfrastructureError
from deskhand.rollout.groups import EpisodeRequest

KEY = "key-of-a-server-that-is-killed"
START_S = 60.0


class ObservedServerPool(ServerPool):
    """Pool that records which desktops each episode leased."""

    def __init__(self, address: str) -> None:
        super().__init__(address, KEY)
        self.given: list[tuple[Observed, str]] = []
        self.out: set[int] = set()

    async def lease(self, spec: DesktopSpec | None = None) -> Lease:
        lease = await super().lease(spec)
        task = asyncio.current_task()
        observed = Observed(lease.desktop)
        self.given.append((observed, task.get_name() if task else ""))
        self.out.add(lease.epoch)
        return Lease(cast(StageableDesktop, observed), lease.epoch)

    async def release(self, lease: Lease) -> None:
        self.out.discard(lease.epoch)
        await super().release(lease)


@asynccontextmanager
async def serving(port: int, desktops: int, lease_db: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """Run `deskhand serve` on `port` and kill it at the end. Raises `InfrastructureError` if it does not start."""
    command = [sys.executable, "-m", "deskhand", "serve", "desktops", "--port", str(port), "--desktops", str(desktops)]
    command += ["--screen", "320x240", "--no-accessibility", "--lease-db", str(lease_db)]
    log = lease_db.with_name("server.log")
    with log.open("a") as errors:
        process = subprocess.Popen(  # noqa: ASYNC220 it takes milliseconds
            command,
            cwd=ROOT,
            env=os.environ | {"DESKHAND_SERVER_API_KEY": KEY},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        if not await asyncio.to_thread(process.stdout.readline):
            raise InfrastructureError(f"deskhand serve did not start: {log.read_text()[-2000:]}")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def owner_of(server_pid: int) -> str:
    """Return the owner label of its desktops. Raises `InfrastructureError` if it has none."""
    label = f"{processes.OWNER_LABEL}=".encode()
    for pid in processes.descendants(server_pid):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for word in words:
            if word.startswith(label):
                return word.removeprefix(label).decode()
    raise InfrastructureError("the server has started no desktop")


def held_in(lease_db: Path) -> list[int]:
    """Return the epochs of active leases in the lease database."""
    try:
        with sqlite3.connect(f"file:{lease_db}?mode=ro", uri=True) as rows:
            return [epoch for (epoch,) in rows.execute("SELECT epoch FROM leases WHERE ended_at IS NULL")]
    except sqlite3.Error:
        return []


async def server_round(folder: Path, number: int, at_a_time: int, delay_s: float, tally: Tally) -> None:
    """Play over a server, kill it `delay_s` after the first lease or later, start the next at once, and look at what is
    left.

    Nothing is counted when the episodes ended before the kill.
    """
    port, lease_db = free_port(1 + at_a_time), folder / "leases.sqlite"
    async with serving(port, at_a_time, lease_db) as victim:
        pool = ObservedServerPool(f"http://127.0.0.1:{port}")
        async with staged(folder / "run", EASY, at_a_time, lambda size: pool) as stage:
            requests = [
                EpisodeRequest(f"{number}-{index}", stage.task(number * at_a_time + index))
                for index in range(at_a_time)
            ]
            playing = [asyncio.create_task(stage.runner.run(request), name=request.episode_id) for request in requests]
            began = time.monotonic()
            while not pool.out or time.monotonic() - began < delay_s:
                await asyncio.sleep(0.005)
                if all(task.done() for task in playing):
                    return
            held, owner, marked = held_in(lease_db), owner_of(victim.pid), processes.descendants(victim.pid)
            given = list(pool.given)
            done = {task.get_name() for task in playing if task.done()}
            at = time.monotonic()
            victim.kill()
            tally.rounds["server"] += 1
            async with serving(port, at_a_time, lease_db):
                results = await asyncio.gather(*playing)
                await _fenced(port, lease_db, held, [observed for observed, _ in given], tally)
            hit = [(observed, episode) for observed, episode in given if episode not in done]
            known = done | {
                episode for _, episode in hit
            }  # who waited for a desktop may have got one of the next server's
            judge([result for result in results if result.episode_id in known], hit, at, "server", tally)
            await asyncio.to_thread(_left, owner, marked, at, tally)


async def _fenced(port: int, lease_db: Path, held: list[int], before: list[Observed], tally: Tally) -> None:
    """Check that the successor released the old leases, rejects their keys and issues higher epochs."""
    tally.leases += len(held)
    tally.unfenced += len(set(held) & set(held_in(lease_db)))
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=START_S) as http:
        for observed in before:
            lease = observed.sandbox
            headers = {"authorization": f"Bearer {lease.key}", "x-deskhand-epoch": str(lease.epoch)}
            late = await http.get(f"/leases/{lease.id}/desktop/frame", headers=headers)
            tally.unfenced += late.status_code < 400
        reply = await http.post("/leases", json={}, headers={"authorization": f"Bearer {KEY}"})
        tally.unfenced += reply.status_code != 201 or reply.json()["epoch"] <= max(held, default=0)


def _left(owner: str, marked: list[int], at: float, tally: Tally) -> None:
    """Return the processes and directories left by the killed server."""
    gone(marked, at, tally)
    while list(tmpfs().glob(f"*-{owner}")) and time.monotonic() - at < GONE_WITHIN_S:
        time.sleep(0.01)
    tally.orphans += len(processes.find_labeled(processes.OWNER_LABEL, owner)) + len(list(tmpfs().glob(f"*-{owner}")))
