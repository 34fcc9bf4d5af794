"""What the benchmark of the desktop measures, part by part. Invariant: ours and the recipe's run on the same screen, one after the
other, and what is timed ends with a proof: a reply of the X server, or a whole picture.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deskhand.actions.ops import Click, Key, Op, Point, Scroll, Type, screen_px
from deskhand.desktop.base import DesktopSpec, Frame, Window
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.pool import DesktopPool

FULL_HD = DesktopSpec("plain", 1920, 1080)
USUAL = DesktopSpec("plain", 1280, 720)
SMALL = DesktopSpec("plain", 320, 240)


def durations_ms(work: Callable[[], object], repetitions: int) -> list[float]:
    """How long `work()` took each time."""
    found = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        found.append((time.perf_counter() - start) * 1000)
    return found


def spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return (
        f"median {statistics.median(ordered):.3g} ms, p90 {ordered[int(len(ordered) * 0.9)]:.3g} ms, n {len(ordered)}"
    )


def memory_mib(pids: Sequence[int]) -> float:
    """Sum of the proportional set sizes, MiB."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def processor_s(pids: Sequence[int]) -> float:
    """Processor time that living processes and their ended children have used, and this process."""
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        ticks += sum(int(word) for word in stat.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK") + time.process_time()


@dataclass(frozen=True)
class Act:
    """One action of a script: our op and the recipe's code."""

    op: Op
    code: str


def calc_script(window: Window, count: int) -> list[Act]:
    """Clicks on cells, values typed, a menu opened and closed, the wheel: `count` actions for a spreadsheet in `window`."""
    space = screen_px(USUAL.width, USUAL.height)
    found: list[Act] = []
    for index in range(count):
        x, y = window.x + 150 + 80 * (index % 7), window.y + 260 + 18 * (index % 11)
        found += [
            Act(Click(Point(x, y, space)), f"pyautogui.click({x}, {y})"),
            Act(Type(f"{index * 37 % 1000}\n"), f"pyautogui.typewrite('{index * 37 % 1000}\\n')"),
            Act(Key(("alt", "f")), "pyautogui.hotkey('alt', 'f')"),
            Act(Key(("esc",)), "pyautogui.press('esc')"),
            Act(Scroll(dy=3), "pyautogui.scroll(-3)"),
            Act(Scroll(dy=-3), "pyautogui.scroll(3)"),
        ]
    return found[:count]


@dataclass(frozen=True)
class Program:
    """`argv` starts it, `window` is a part of its window's class."""

    argv: tuple[str, ...]
    window: str


SMALL_PROGRAM = Program(("l3afpad",), "l3afpad")


async def open_application(desktop: LocalDesktop, program: Program = SMALL_PROGRAM) -> Window:
    """Start a program, fill the screen with it, wait until it is still."""
    template = desktop_template(desktop)
    await desktop.launch(list(program.argv))
    window = (await desktop.wait_window(program.window, timeout_s=60))[0]
    window = await desktop.place_window(window, 0, 24, template.width, template.height - 24)
    for _ in range(20):
        frame = await desktop.observe()
        if frame.settle_reason != "cap" and frame.settle_ms == 0:
            break
    return window


def desktop_template(desktop: LocalDesktop) -> DesktopSpec:
    session, _ = desktop._parts()
    return session.template


async def step(desktop: LocalDesktop, op: Op, action_id: str) -> Frame:
    """What an agent pays for: the op performed, the screen settled, and the frame as the PNG that a model is sent."""
    frame = await desktop.perform([op], action_id=action_id)
    await asyncio.to_thread(frame.png)
    return frame


async def our_steps(desktop: LocalDesktop, script: Sequence[Act], name: str = "") -> list[float]:
    found = []
    for index, move in enumerate(script):
        start = time.perf_counter()
        await step(desktop, move.op, f"{name}{index}")
        found.append((time.perf_counter() - start) * 1000)
    return found


async def cold_starts(template: DesktopSpec, repetitions: int, program: Program | None = None) -> list[float]:
    """Milliseconds from nothing to the first settled frame (with `program` on it)."""
    found = []
    for _ in range(repetitions):
        desktop = LocalDesktop()
        start = time.perf_counter()
        try:
            await desktop.reset(template)
            if program:
                await open_application(desktop, program)
            found.append((time.perf_counter() - start) * 1000)
        finally:
            await desktop.close()
    return found


async def warm_resets(template: DesktopSpec, repetitions: int) -> list[float]:
    """Milliseconds from asking the pool to the first frame, with the next desktop prepared beforehand."""
    found = []
    async with DesktopPool(1, template, prewarm=1) as pool:
        for _ in range(repetitions):
            await pool.warm_up()
            start = time.perf_counter()
            lease = await pool.lease()
            await lease.desktop.reset(template)
            found.append((time.perf_counter() - start) * 1000)
            await pool.release(lease)
    return found


@dataclass(frozen=True)
class Crowd:
    """Several desktops at once: `mib` each, and what they did together."""

    mib: tuple[float, ...]
    steps: int
    wall_s: float
    processor_s: float

    @property
    def per_core_second(self) -> float:
        return self.steps / self.processor_s


Script = Callable[[Window, int], list[Act]]


async def crowd(template: DesktopSpec, count: int, program: Program, script: Script, steps: int) -> Crowd:
    """`count` desktops with a program each, then `steps` steps of `script` on every one at the same time."""
    desktops = [LocalDesktop() for _ in range(count)]
    try:
        starts = asyncio.Semaphore(2)

        async def start(desktop: LocalDesktop) -> Window:
            async with starts:
                await desktop.reset(template)
                return await open_application(desktop, program)

        found = await asyncio.gather(*(start(desktop) for desktop in desktops))
        pids = [pid for desktop in desktops for pid in desktop.processes()]
        before, used = time.perf_counter(), processor_s(pids)
        moves = [script(window, steps) for window in found]
        await asyncio.gather(*(our_steps(desktop, each) for desktop, each in zip(desktops, moves, strict=True)))
        wall, used = time.perf_counter() - before, processor_s(pids) - used
        return Crowd(tuple(memory_mib(desktop.processes()) for desktop in desktops), steps * count, wall, used)
    finally:
        await asyncio.gather(*(desktop.close() for desktop in desktops))


def editor_script(window: Window, count: int) -> list[Act]:
    """Words typed and clicks in the middle of an editor."""
    space = screen_px(USUAL.width, USUAL.height)
    places = [Point(window.x + 200 + 37 * (index % 20), window.y + window.height // 2, space) for index in range(count)]
    return [Act(Click(place) if index % 2 else Type(f"word {index} "), "") for index, place in enumerate(places)]
