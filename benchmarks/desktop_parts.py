"""Measurements of `benchmarks.desktop`. Each ends with a proof of completion: an X server reply or a whole frame."""

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
PANEL, PANEL_FULL_HD = (DesktopSpec("panel", spec.width, spec.height) for spec in (USUAL, FULL_HD))


def durations_ms(work: Callable[[], object], repetitions: int) -> list[float]:
    """Return the duration of each call."""
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
    """Return the sum of the proportional set sizes in MiB."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def processor_s(pids: Sequence[int]) -> float:
    """Return the CPU seconds of living processes, their ended children and this process."""
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
    """One scripted action: Deskhand's op and the recipe's code."""

    op: Op
    code: str


def calc_script(window: Window, count: int) -> list[Act]:
    """Return `count` spreadsheet actions: clicks, typing, menus, scrolls."""
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
    """A program and a part of its window class."""

    argv: tuple[str, ...]
    window: str


SMALL_PROGRAM = Program(("l3afpad",), "l3afpad")


async def open_application(desktop: LocalDesktop, program: Program = SMALL_PROGRAM) -> Window:
    """Start a program, maximize it and wait until the screen settles."""
    spec = desktop_spec_of(desktop)
    await desktop.launch(list(program.argv))
    window = (await desktop.wait_window(program.window, timeout_s=60))[0]
    window = await desktop.place_window(window, 0, 24, spec.width, spec.height - 24)
    for _ in range(20):
        frame = await desktop.observe()
        if frame.settle_reason != "cap" and frame.settle_ms == 0:
            break
    return window


def desktop_spec_of(desktop: LocalDesktop) -> DesktopSpec:
    session, _ = desktop._parts()
    return session.spec


async def step(desktop: LocalDesktop, op: Op, action_id: str) -> Frame:
    """Execute an op, wait until the screen settles and encode the frame as PNG."""
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


async def cold_starts(spec: DesktopSpec, repetitions: int, program: Program | None = None) -> list[float]:
    """Return milliseconds from creation to the first settled frame (with `program` open)."""
    found = []
    for _ in range(repetitions):
        desktop = LocalDesktop()
        start = time.perf_counter()
        try:
            await desktop.reset(spec)
            if program:
                await open_application(desktop, program)
            found.append((time.perf_counter() - start) * 1000)
        finally:
            await desktop.close()
    return found


async def warm_resets(spec: DesktopSpec, repetitions: int) -> list[float]:
    """Return milliseconds from lease to first frame with a prewarmed desktop."""
    found = []
    async with DesktopPool(1, spec, prewarm=1) as pool:
        for _ in range(repetitions):
            await pool.warm_up()
            start = time.perf_counter()
            lease = await pool.lease()
            await lease.desktop.reset(spec)
            found.append((time.perf_counter() - start) * 1000)
            await pool.release(lease)
    return found


@dataclass(frozen=True)
class Crowd:
    """Concurrent desktops: `mib` each, and their total throughput."""

    mib: tuple[float, ...]
    steps: int
    wall_s: float
    processor_s: float

    @property
    def per_core_second(self) -> float:
        return self.steps / self.processor_s


Script = Callable[[Window, int], list[Act]]


async def crowd(spec: DesktopSpec, count: int, program: Program, script: Script, steps: int) -> Crowd:
    """Run `steps` steps of `script` on each of `count` concurrent desktops."""
    desktops = [LocalDesktop() for _ in range(count)]
    try:
        starts = asyncio.Semaphore(2)

        async def start(desktop: LocalDesktop) -> Window:
            async with starts:
                await desktop.reset(spec)
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
    """Return typing and clicks in an editor."""
    space = screen_px(USUAL.width, USUAL.height)
    places = [Point(window.x + 200 + 37 * (index % 20), window.y + window.height // 2, space) for index in range(count)]
    return [Act(Click(place) if index % 2 else Type(f"word {index} "), "") for index, place in enumerate(places)]
