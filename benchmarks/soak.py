"""Many steps on many desktops: `python -m benchmarks.soak [--full]` (8 desktops, 2,000 steps each; otherwise 4 and 120).

Every desktop runs an editor on its own; the script types words and new characters, clicks, drags, scrolls, and empties the page.
It is the same in every quarter, so that their slowest steps can be compared: some drags take the editor half a second whenever they
come (text that is dropped nowhere glides back), and about every hundredth step is such a drag.
Memory is looked at after the first quarter, when everything has been used once, and at the end. The editor keeps what was typed in
its undo list, so its own memory is printed and has no bar; ours, the X server and the window manager have one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.desktop_parts import SMALL, memory_mib, open_application
from benchmarks.thresholds import Bars, parser_of, print_head
from deskhand.actions.ops import Click, Drag, Key, Op, Point, Scroll, Type, screen_px
from deskhand.desktop.base import Window
from deskhand.desktop.local import processes
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.runtime_dir import runtime

GROWTH_MIB = 8.0


@dataclass
class Level:
    """Use of memory and descriptors at one time."""

    own_mib: float
    descriptors: int
    threads: int
    server_mib: list[float]
    guest_mib: list[float]


@dataclass
class Soak:
    """`steps_ms[q]` are the durations of the q-th quarter's steps, of all desktops; `left` is what was not there before them."""

    steps_ms: list[list[float]] = field(default_factory=lambda: [[], [], [], []])
    levels: list[Level] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def p99_ms(self, quarter: int) -> float:
        ordered = sorted(self.steps_ms[quarter])
        return ordered[int(len(ordered) * 0.99)]


def own_mib() -> float:
    """Resident memory of this process without pages that files back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def level(desktops: list[LocalDesktop]) -> Level:
    gc.collect()
    by_role: tuple[list[float], list[float]] = ([], [])
    for desktop in desktops:
        server, *guests = desktop.processes()
        by_role[0].append(memory_mib([server]))
        by_role[1].append(memory_mib(guests))
    threads = len(os.listdir("/proc/self/task"))
    return Level(own_mib(), len(os.listdir("/proc/self/fd")), threads, *by_role)


def script(seed: int, window: Window) -> list[Op]:
    """A hundred steps that leave the page empty."""
    rng = random.Random(seed)
    space = screen_px(SMALL.width, SMALL.height)

    def place() -> Point:
        return Point(
            rng.randrange(window.x + 20, window.x + window.width - 20),
            rng.randrange(window.y + 40, SMALL.height - 20),
            space,
        )

    ops: list[Op] = []
    while len(ops) < 98:
        kind = rng.randrange(6)
        if kind == 0:
            ops.append(Type("".join(chr(rng.randrange(0x3B1, 0x3C9)) for _ in range(4)) + " "))
        elif kind == 1:
            ops.append(Type(f"word {rng.randrange(1000)}\n"))
        elif kind == 2:
            ops.append(Click(place()))
        elif kind == 3:
            ops.append(Drag((place(), place())))
        elif kind == 4:
            ops.append(Scroll(dy=rng.choice((-3, 3)), point=place()))
        else:
            ops.append(Key(rng.choice((("home",), ("end",), ("pageup",), ("ctrl", "a")))))
    return [*ops, Key(("ctrl", "a")), Key(("delete",))]


def _there() -> set[str]:
    """This process's desktops and evaluators: the pids that run with its label, and the folders that it made."""
    own = runtime()
    pids = (
        pid for pid in processes.labelled(processes.OWNER_LABEL, own.token) if processes.state(pid) not in ("", "Z")
    )
    return {*map(str, pids), *(path.name for path in own.folder.iterdir() if path.name != "templates")}


async def soak(count: int, steps: int) -> Soak:
    """`steps` (a multiple of 4) steps on each of `count` desktops."""
    found, before = Soak(), _there()
    desktops = [LocalDesktop() for _ in range(count)]
    try:
        windows = []
        for desktop in desktops:
            await desktop.reset(SMALL)
            windows.append(await open_application(desktop))

        async def quarter(index: int, number: int) -> None:
            desktop, first = desktops[index], number * steps // 4
            for turn in range(first, first + steps // 4):
                ops = script(index * 1000 + (turn - first) // 100, windows[index])
                start = time.perf_counter()
                frame = await desktop.perform([ops[(turn - first) % 100]], action_id=str(turn))
                found.steps_ms[number].append((time.perf_counter() - start) * 1000)
                assert frame.sequence > turn

        for number in range(4):
            await asyncio.gather(*(quarter(index, number) for index in range(count)))
            found.levels.append(level(desktops))
    finally:
        await asyncio.gather(*(desktop.close() for desktop in desktops))
    found.left = sorted(_there() - before)
    return found


def judge(found: Soak, bars: Bars) -> None:
    first, last = found.levels[0], found.levels[-1]
    growth = last.own_mib - first.own_mib
    bars.check(
        "own memory",
        growth <= GROWTH_MIB,
        f"{first.own_mib:.1f} to {last.own_mib:.1f} MiB",
        f"grows by {GROWTH_MIB:.0f} at most",
    )
    worst = max(now - then for then, now in zip(first.server_mib, last.server_mib, strict=True))
    bars.check(
        "memory of X servers",
        worst <= GROWTH_MIB,
        f"the largest growth is {worst:.1f} MiB",
        f"{GROWTH_MIB:.0f} at most",
    )
    print(f"      guests: {sum(first.guest_mib):.0f} to {sum(last.guest_mib):.0f} MiB together", flush=True)
    bars.check(
        "descriptors", last.descriptors <= first.descriptors, f"{first.descriptors} then {last.descriptors}", "no more"
    )
    bars.check("threads", last.threads <= first.threads, f"{first.threads} then {last.threads}", "no more")
    ratio = found.p99_ms(3) / found.p99_ms(0)
    figure = f"{found.p99_ms(0):.0f} ms in the first quarter, {found.p99_ms(3):.0f} ms in the last"
    bars.check("p99 of a step", ratio <= 2, figure, "last <= 2x first")
    bars.check("left behind", not found.left, ", ".join(found.left) or "nothing", "no process and no folder")


def main() -> None:
    options = parser_of(__doc__, "8 desktops, 2,000 steps each").parse_args()
    count, steps = {"smoke": (1, 8), "small": (4, 120), "full": (8, 2000)}[options.size]
    print_head()
    start = time.perf_counter()
    found = asyncio.run(soak(count, steps))
    wall = time.perf_counter() - start
    print(f"{count} desktops, {steps} steps each, {count * steps / wall:.0f} steps/s together", flush=True)
    bars = Bars()
    judge(found, bars)
    bars.finish()


if __name__ == "__main__":
    main()
