"""Rows 3, 4, 8 and 17: network faults, and many steps over a bad network."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.fault_rows.parts import (
    KEY,
    QUICK,
    SCREEN,
    CountedEpisodes,
    Faults,
    FaultyNetwork,
    Row,
    check_actions,
    faulty_server,
    point,
    scaled,
)
from deskhand.actions.ops import Move, Type
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.frame_codec import RemoteLeaseExpired
from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.desktop.remote.waa_desktop import WaaDesktop
from deskhand.errors import InfrastructureError
from deskhand.server.process import ServerConfig, serve_pool

LOOKING = ScreenPolling(pause_s=0.0, max_screenshots=1)


async def row_3(size: float, folder: Path) -> Row:
    """502, 503 and 504, half of them after execution."""
    row = Row(3, "503/502/504 at 1 %, 5 %, 20 %")
    for share, count in ((0.01, scaled(size, 30, 500)), (0.05, scaled(size, 100, 5000)), (0.20, scaled(size, 20, 300))):
        async with faulty_server(8, Faults(bad=share), seed=int(1000 * share)) as (pool, made, network, _):
            source = CountedEpisodes(pool, count, 4)
            await source.run(8)
            source.into(row)
            check_actions(row, made, 4)
            performed = sum(len(desktop.actions) for desktop in made)
            row.demand(performed == source.performed, f"{performed} actions performed, {source.performed} acknowledged")
            row.injected += network.injected
            row.survived += network.injected - sum(result.reward is None for result in source.results)
            row.recovery_s += network.recovery_s
            if share == 0.05:
                row.demand(
                    source.scored_share >= 0.999, f"{100 * source.scored_share:.2f} % of {count} episodes were scored"
                )
                row.note = f"{100 * source.scored_share:.2f} % of {count} episodes scored at 5 %"
    await _on_machines(row, 0.05, scaled(size, 30, 5000), folder)
    return row


async def _on_machines(row: Row, share: float, count: int, folder: Path) -> None:
    """Episodes on machines with OSWorld's server, which has no idempotency: the scripts prevent repeated actions."""
    from fake_osworld import FakeOsworld

    fakes = {f"http://vm{number}.test": FakeOsworld(folder / f"vm{number}", (64, 48)) for number in range(4)}
    networks = {
        name: FaultyNetwork(fake.app, Faults(bad=share), seed=number)
        for number, (name, fake) in enumerate(fakes.items())
    }

    def make(address: str) -> OsworldDesktop:
        link = RetryingClient(address, timeouts=QUICK, transport=networks[address], wait_for_quota=False)
        return OsworldDesktop(link, skip_reset=True, polling=LOOKING)

    async with MachinePool(list(fakes), make, spec=SCREEN) as pool:
        source = CountedEpisodes(pool, count, 2)
        await source.run(len(fakes))
    source.into(row)
    middle = (32, 24)  # where a reset puts the pointer, and no episode
    moved = sum(entry[0] == "moved" and entry[1:] != middle for fake in fakes.values() for entry in fake.guest.journal)
    row.demand(moved == source.performed, f"machines: {moved} actions performed, {source.performed} acknowledged")
    row.demand(
        source.scored_share >= 0.999, f"machines: {100 * source.scored_share:.2f} % of {count} episodes were scored"
    )
    row.injected += sum(network.injected for network in networks.values())
    row.survived += sum(network.injected for network in networks.values())
    row.survived -= sum(result.reward is None for result in source.results)
    row.recovery_s += [seconds for network in networks.values() for seconds in network.recovery_s]
    row.note += f", {100 * source.scored_share:.2f} % of {count} on machines"


async def row_4(size: float, folder: Path) -> Row:
    """Replies lost after execution, over Deskhand's, OSWorld's and WAA's servers."""
    row = Row(4, "20 % of replies lost after execution")
    actions = scaled(size, 600, 90_000)
    async with faulty_server(8, Faults(lost=0.2), seed=4) as (pool, made, network, _):
        leases = [await pool.lease() for _ in range(8)]

        async def act(place: int) -> None:
            desktop = leases[place].desktop
            for number in range(actions // 8):
                await desktop.perform([Move(point(number % 60, number % 40))], action_id=f"step-{number}")

        await asyncio.gather(*(act(place) for place in range(8)))
        wanted = [f"step-{number}" for number in range(actions // 8)]
        row.demand(all(desktop.actions == wanted for desktop in made), "actions were lost or done twice")
        row.steps += 8 * (actions // 8)
        row.injected += network.injected
        row.survived += network.injected
        row.recovery_s += network.recovery_s
    machine_actions = scaled(size, 60, 5_000)
    await asyncio.gather(
        *(_lost_replies_of_a_machine(row, kind, machine_actions, folder) for kind in ("osworld", "waa"))
    )
    row.note = f"0 duplicate and 0 lost of {row.steps}" if not row.wrong else ""
    return row


async def _lost_replies_of_a_machine(row: Row, kind: str, actions: int, folder: Path) -> None:
    from fake_osworld import FakeOsworld
    from fake_waa import FakeWaa

    fake = (FakeWaa if kind == "waa" else FakeOsworld)(folder / kind, (64, 48))
    network = FaultyNetwork(fake.app, Faults(lost=0.2), seed=5)
    link = RetryingClient(f"http://{kind}.test", timeouts=QUICK, transport=network)
    desktop = (
        WaaDesktop(link, polling=LOOKING, ready_s=5)
        if kind == "waa"
        else OsworldDesktop(link, skip_reset=True, polling=LOOKING)
    )
    await desktop.reset(SCREEN)
    fake.guest.journal.clear()
    for number in range(actions):
        await desktop.perform([Move(point(number % 60, number % 40)), Type("é")], action_id=str(number))
    moved = [entry[1:] for entry in fake.guest.journal if entry[0] == "moved"]
    wanted = [(number % 60, number % 40) for number in range(actions)]
    row.demand(moved == wanted, f"{kind}: actions were lost or done twice")
    row.demand(len(fake.guest.text) == actions, f"{kind}: {len(fake.guest.text)} characters for {actions} actions")
    row.steps += actions
    row.injected += network.injected
    row.survived += network.injected
    row.recovery_s += network.recovery_s
    await desktop.close()


class Partition:
    """TCP proxy that can be cut: bytes stall and new connections are not answered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.whole = asyncio.Event()
        self.whole.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.whole.wait()
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        self._tasks = {task for task in self._tasks if not task.done()} | {
            asyncio.create_task(self._pipe(reader, up_writer)),
            asyncio.create_task(self._pipe(up_reader, writer)),
        }

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self.whole.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        self.whole.set()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def _cut_off(idle_s: float) -> AsyncIterator[tuple[Partition, ServerPool, list[Any]]]:
    from fake_pool import painted_pool

    made: list[Any] = []
    async with (
        painted_pool(2, made, SCREEN) as own,
        serve_pool(own, ServerConfig(port=0, admin_key=KEY, idle_s=idle_s)) as running,
    ):
        wire = Partition(running.port)
        port = await wire.start()
        times = RemoteTimeouts(
            connect_s=0.5, read_s=0.5, step_s=60, max_attempts=8, initial_backoff_s=0.1, max_backoff_s=0.5
        )
        pool = ServerPool(f"http://127.0.0.1:{port}", KEY, spec=SCREEN, timeouts=times)
        try:
            yield wire, pool, made
        finally:
            await pool.close()
            await wire.stop()


async def row_8(size: float, folder: Path) -> Row:
    """Network partitions shorter and longer than the lease: resumed or fenced."""
    row = Row(8, "partition of 1 s, 30 s, beyond the lease")
    for cut_s in (1.0, 2.0 + 28.0 * size):
        async with _cut_off(idle_s=600.0) as (wire, pool, made):
            lease = await pool.lease()
            await lease.desktop.perform([Move(point(1, 1))], action_id="before")
            wire.whole.clear()

            async def mend(wire: Partition = wire, cut_s: float = cut_s) -> float:
                await asyncio.sleep(cut_s)
                wire.whole.set()
                return time.monotonic()

            mending = asyncio.create_task(mend())
            row.injected += 1
            for attempt in range(200):
                try:
                    await lease.desktop.perform([Move(point(2, 2))], action_id="during")
                    break
                except InfrastructureError:
                    if attempt == 199:
                        row.wrong.append("it was never resumed")
            row.recovery_s.append(time.monotonic() - await mending)
            row.steps += 2
            row.survived += 1
            (desktop,) = [each for each in made if each.actions]
            row.demand(desktop.actions == ["before", "during"], f"performed: {desktop.actions}")
    async with _cut_off(idle_s=0.6) as (wire, pool, made):
        lease = await pool.lease()
        await lease.desktop.perform([Move(point(1, 1))], action_id="before")
        wire.whole.clear()
        row.injected += 1
        await asyncio.sleep(2.0)
        wire.whole.set()
        try:
            await lease.desktop.perform([Move(point(2, 2))], action_id="late")
            row.wrong.append("a lease that was over was good for something")
        except RemoteLeaseExpired:
            row.survived += 1
            row.unscored += 1
        row.demand(not any("late" in desktop.actions for desktop in made), "a fenced client acted")
        row.demand(all(desktop.closed for desktop in made), "its desktop was not ended")
    row.note = "resumed twice, fenced once"
    return row


def _resident_mib() -> float:
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


async def row_17(size: float, folder: Path) -> Row:
    """Eight remote desktops, many steps, 2 % faults: memory, descriptors and latency stay constant."""
    row = Row(17, "8 remote desktops x 2 000 steps, 2 % faults")
    steps = scaled(size, 100, 2000)
    async with faulty_server(8, Faults(lost=0.01, bad=0.01), seed=17) as (pool, made, network, _):
        leases = [await pool.lease() for _ in range(8)]
        chance, took = random.Random(1), [[], [], [], []]
        levels: list[tuple[float, int]] = []

        async def act(place: int, quarter: int) -> None:
            for number in range(steps // 4):
                began = time.monotonic()
                at = point(chance.randrange(64), chance.randrange(48))
                await leases[place].desktop.perform([Move(at)], action_id=f"step-{quarter * (steps // 4) + number}")
                took[quarter].append(time.monotonic() - began)

        for quarter in range(4):
            await asyncio.gather(*(act(place, quarter) for place in range(8)))
            levels.append((_resident_mib(), len(os.listdir("/proc/self/fd"))))
        row.steps, row.injected, row.survived = 8 * steps, network.injected, network.injected
        row.recovery_s = network.recovery_s
        check_actions(row, made, steps)
        slope = (levels[3][0] - levels[0][0]) / (0.75 * 8 * steps / 1000)
        tails = [sorted(each)[int(0.99 * len(each))] for each in took]
        if size > 0.5:
            row.demand(slope < 1.0, f"memory grows by {slope:.2f} MiB in 1 000 steps")
            row.demand(
                tails[3] < 2 * tails[0] + 0.02, f"p99 rose from {1000 * tails[0]:.0f} to {1000 * tails[3]:.0f} ms"
            )
        row.demand(levels[3][1] <= levels[0][1] + 2, f"descriptors rose from {levels[0][1]} to {levels[3][1]}")
        row.note = f"{slope:+.2f} MiB in 1 000 steps, p99 {1000 * tails[0]:.0f} -> {1000 * tails[3]:.0f} ms"
    return row
