"""Latency that the desktop server adds: `python -m benchmarks.server_latency [--full]`.

One server process with an API key, its clients in another, over loopback. Desktops return prepared 1280x720 screens
instantly, so only the server, protocol and client are measured. Steps arrive in an open loop: a late step does not
delay the next, and waiting counts. The growth of the server's memory is measured over all runs after the first.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time

import numpy as np
import psutil

from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.actions.ops import Move, Op, Point, screen_px
from deskhand.desktop import host_capacity
from deskhand.desktop.base import DesktopSpec, Frame, Lease, StageableDesktop
from deskhand.desktop.pool import DesktopPool
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.server.process import ServerConfig, serve_pool

WIDTH, HEIGHT = 1280, 720
STEPS_PER_S = 32
KEY = "the-key-of-the-benchmark"
TIMER_S = 0.0015
"""The event loop's timers are rounded up to a millisecond, which is the load's and not the server's: the end of each
pause is waited for without them."""
P50_MS, P99_MS, GROWTH_MIB = 5.0, 50.0, 16.0


def screens() -> list[np.ndarray]:
    """Return two screens that differ in a window of 400x300 pixels."""
    generator = np.random.default_rng(0)
    before = generator.integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)
    after = before.copy()
    after[200:500, 300:700] = generator.integers(0, 256, (300, 400, 4), np.uint8)
    for screen in (before, after):
        screen.flags.writeable = False
    return [before, after]


SCREENS = screens()


class Prepared:
    """Desktop with prepared screens."""

    def __init__(self) -> None:
        self._sequence = 0

    async def reset(self, spec: DesktopSpec) -> Frame:
        return await self.observe()

    async def observe(self) -> Frame:
        self._sequence += 1
        number = self._sequence % 2
        return Frame(SCREENS[number], self._sequence, f"screen {number}", 0.0, "quiet", (300, 200, 700, 500), (0, 0))

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        return await self.observe()

    async def close(self) -> None:
        return


def prepared() -> StageableDesktop:
    desktop: object = Prepared()
    return desktop  # pyright: ignore[reportReturnType]


async def serve(leases: int) -> None:
    """Print the port and serve until standard input closes."""
    spec = DesktopSpec(width=WIDTH, height=HEIGHT)
    host_capacity.MAX_DESKTOPS_PER_CORE, host_capacity.SHARED_MEMORY_MIB = (
        leases,
        1,
    )  # prepared screens take no processor to start, and no memory of their own
    async with (
        DesktopPool(leases, spec, prewarm=0, make=prepared, memory_request_mib=4) as pool,
        serve_pool(pool, ServerConfig(port=0, admin_key=KEY, idle_s=3600)) as running,
    ):
        print(running.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def steps(held: list[Lease], seconds: float) -> list[float]:
    """Return latencies in ms, from due time to frame, of steps arriving `STEPS_PER_S` per second."""
    latencies: list[float] = []
    point = Point(5, 5, screen_px(WIDTH, HEIGHT))

    async def step(number: int, due: float) -> None:
        await held[number % len(held)].desktop.perform([Move(point)], action_id=str(number))
        latencies.append((time.monotonic() - due) * 1000)

    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(seconds * STEPS_PER_S)):
            due = began + number / STEPS_PER_S
            await asyncio.sleep(max(0.0, due - time.monotonic() - TIMER_S))
            while time.monotonic() < due:  # noqa: ASYNC110 what is waited for is a time
                await asyncio.sleep(0)
            tasks.create_task(step(number, due))
    return latencies


async def measure(leases: int, seconds: float, runs: int) -> None:
    thresholds = Thresholds()
    print_head()
    command = [sys.executable, "-m", "benchmarks.server_latency", "--serve", str(leases)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        address = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        async with ServerPool(address, KEY, spec=DesktopSpec(width=WIDTH, height=HEIGHT)) as pool:
            held = [await pool.lease() for _ in range(leases)]
            for lease in held:
                await lease.desktop.observe()
            middles, tails, memory = [], [], []
            for number in range(runs):
                found = await steps(held, seconds)
                cuts = statistics.quantiles(found, n=100)
                middles.append(cuts[49])
                tails.append(cuts[98])
                memory.append(psutil.Process(process.pid).memory_info().rss / 2**20)
                shown = f"p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, server {memory[-1]:.0f} MiB"
                print(f"run {number + 1}: {leases} leases, {len(found)} steps at {STEPS_PER_S}/s: {shown}", flush=True)
        assert process.stdin is not None
        process.stdin.close()
    p50, p99 = statistics.median(middles), statistics.median(tails)
    thresholds.check("added to a step, p50", p50 <= P50_MS, f"{p50:.1f} ms", f"<= {P50_MS:g} ms, median of {runs} runs")
    thresholds.check("added to a step, p99", p99 <= P99_MS, f"{p99:.1f} ms", f"<= {P99_MS:g} ms, median of {runs} runs")
    if runs > 1:
        growth = memory[-1] - memory[0]
        thresholds.check(
            "memory is flat", growth <= GROWTH_MIB, f"{growth:+.1f} MiB from run 1 to {runs}", f"<= {GROWTH_MIB:g} MiB"
        )
    thresholds.finish()


def main() -> None:
    parser = parser_of(__doc__, "64 leases, five runs of 30 s")
    parser.add_argument("--serve", type=int, metavar="LEASES", help="only serve; this is for the benchmark itself")
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
    else:
        sizes = {"smoke": (4, 1, 1), "small": (64, 4, 1), "full": (64, 30, 5)}
        asyncio.run(measure(*sizes[arguments.size]))


if __name__ == "__main__":
    main()
