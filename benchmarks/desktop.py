"""How fast and how large an embedded desktop is: `python -m benchmarks.desktop [repetitions]`.

An *action* is a pointer move, sent and carried out by the X server. A *raw frame* is one whole copy of the screen. A *step* is
a click in an editor, settled, as a `Frame`; its quiet time is part of it and is printed. A *cold reset* starts everything; a
*warm lease* is handed a spare. Memory is the proportional set size of the X server and all that runs in the box.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from deskhand.actions.ops import Click, Point, screen_px
from deskhand.desktop.base import Template
from deskhand.desktop.embedded import settle
from deskhand.desktop.embedded.desktop import EmbeddedDesktop
from deskhand.desktop.embedded.performer import Performer
from deskhand.desktop.embedded.session import Session
from deskhand.desktop.pool import DesktopPool

SIZES = ((1280, 720), (256, 192))
APPLICATION = "l3afpad"


def milliseconds(work: Callable[[], object], repetitions: int) -> list[float]:
    """Sorted durations of `work()`."""
    durations = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        durations.append((time.perf_counter() - start) * 1000)
    return sorted(durations)


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"p50 {ordered[len(ordered) // 2]:.2f} ms  p90 {ordered[int(len(ordered) * 0.9)]:.2f} ms"


def memory_mib(pids: list[int]) -> float:
    """Sum of the proportional set sizes, MiB."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def hardware() -> str:
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    return f"{len(os.sched_getaffinity(0))} x {cpu}, {memory_gib:.0f} GiB, Linux {platform.release()}, load {load:.1f}"


def input_and_frames(template: Template, repetitions: int) -> None:
    """The two parts of a step that are ours alone, without threads or event loop."""
    session = Session("benchmark", template, EmbeddedDesktop().isolation)
    try:
        performer = Performer(session, 0.06, 2.0)
        performer.first_frame()
        hand, connection = performer.hand, session.connection
        place = iter(range(10**9))

        def act() -> None:
            index = next(place)
            hand.move(20 + index % 200, 20 + index % 150)
            connection.sync()

        print(f"  action               {spread(milliseconds(act, repetitions * 20))}")
        frames = milliseconds(lambda: settle.capture(connection, session.framebuffer), repetitions * 10)
        print(f"  raw frame            {spread(frames)}")
    finally:
        session.close()


async def steps_and_memory(template: Template, repetitions: int) -> None:
    desktop = EmbeddedDesktop()
    try:
        await desktop.reset(template)
        bare = memory_mib(desktop.processes())
        await desktop.launch([APPLICATION])
        (window,) = await desktop.wait_window(APPLICATION)
        await desktop.observe()
        durations, settled = [], []
        for index in range(repetitions):
            x = window.x + window.width // 4 + 40 * (index % 3)
            start = time.perf_counter()
            point = Point(x, window.y + window.height // 2, screen_px(*frame_size(template)))
            frame = await desktop.perform([Click(point)], action_id=str(index))
            durations.append((time.perf_counter() - start) * 1000)
            settled.append(frame.settled_ms)
        print(f"  step (click, settle, frame) {spread(durations)}, of it {desktop.quiet_ms:.0f} ms quiet time")
        print(f"  last change after a click   {spread(settled)}")
        print(f"  memory (PSS)         {bare:.0f} MiB bare, {memory_mib(desktop.processes()):.0f} MiB with {APPLICATION}")
    finally:
        await desktop.close()


def frame_size(template: Template) -> tuple[int, int]:
    return template.width, template.height


async def resets(template: Template, repetitions: int) -> None:
    cold, processor = [], []
    for _ in range(repetitions):
        desktop = EmbeddedDesktop()
        start, used = time.perf_counter(), time.process_time() + child_seconds()
        await desktop.reset(template)
        cold.append((time.perf_counter() - start) * 1000)
        await desktop.close()
        processor.append((time.process_time() + child_seconds() - used) * 1000)
    print(f"  cold reset           {spread(cold)}; processor time with its end {statistics.median(processor):.0f} ms")
    warm = []
    async with DesktopPool(1, template, spares=1) as pool:
        for _ in range(repetitions):
            await pool.prepared()
            start = time.perf_counter()
            lease = await pool.lease()
            await lease.desktop.reset(template)
            warm.append((time.perf_counter() - start) * 1000)
            await pool.release(lease)
    print(f"  warm lease and reset {spread(warm)}")


def child_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


async def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f"hardware: {hardware()}")
    for width, height in SIZES:
        template = Template("plain", width, height)
        print(f"{width}x{height}, isolation {EmbeddedDesktop().isolation}")
        await asyncio.to_thread(input_and_frames, template, repetitions)
        await steps_and_memory(template, repetitions)
        await resets(template, repetitions)


if __name__ == "__main__":
    asyncio.run(main())
