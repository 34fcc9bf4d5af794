"""MiniWoB++ on the embedded desktop: `python -m benchmarks.miniwob` (`--full`: 3 seeds of every page and 3 a solution).

Every page is loaded with seeds and must begin its episode, say what it wants and hide its reward. Every solution is played by
pointer and keyboard on a desktop of its own, and what the judge says is compared with the page's own reward; an agent that does
nothing must score 0. Exits with 1 when a page does not load, a solution does not earn 1, or a score is not the page's reward.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import DeskhandError
from deskhand.tasks import chromium
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites import miniwob
from deskhand.tasks.suites.miniwob import solutions
from deskhand.tasks.task import Task

HIDDEN = "['reward-display', 'click-canvas', 'sync-task-cover'].every(id => !document.getElementById(id) || \
getComputedStyle(document.getElementById(id)).display === 'none')"


@asynccontextmanager
async def fresh_desktop() -> AsyncIterator[LocalDesktop]:
    desktop = LocalDesktop()
    try:
        await desktop.reset(DesktopSpec("plain", miniwob.WIDTH, miniwob.HEIGHT))
        yield desktop
    finally:
        await desktop.close()


async def loads(seeds: int) -> list[str]:
    """What is wrong with the pages, in one browser that goes from one to the next."""
    wrong, told, began = [], set[str](), time.monotonic()
    async with fresh_desktop() as desktop:
        for name in miniwob.task_names():
            for place, path in miniwob.page_files(name).items():
                await desktop.push(f"{miniwob.FOLDER}/{place}", path.read_bytes())
        await miniwob.start(desktop, miniwob.task_names()[0], 0)
        page = chromium.session_of(desktop)
        folder = str(await page.evaluate("location.href")).rsplit("/", 1)[0]
        for name in miniwob.task_names():
            for seed in range(seeds):
                try:
                    await page.navigate(f"{folder}/{name}.html")
                    await miniwob.begin_episode(page, seed)
                    instruction = await miniwob.instruction(desktop)
                    if (
                        not instruction
                        or not await page.evaluate(HIDDEN)
                        or await miniwob.page_reward(desktop) is not None
                    ):
                        wrong.append(f"{name} seed {seed}: {instruction!r}, or its reward is shown or given already")
                    told.add(f"{name}: {instruction}")
                except DeskhandError as error:
                    wrong.append(f"{name} seed {seed}: {error}")
    count = len(miniwob.task_names())
    seconds = time.monotonic() - began
    begun = f"{count * seeds - len(wrong)} of {count * seeds} begin their episode ({seconds:.0f} s)"
    print(f"{count} pages with {seeds} seeds each: {begun}")
    print(f"{len(told)} different instructions of {count} pages")
    return wrong


async def scored(task: Task, *, solve: bool) -> tuple[float, float | None, int, float]:
    """(the judge's value, the page's own reward, steps, seconds of set-up). Raises `DeskhandError`."""
    async with fresh_desktop() as desktop:
        began = time.monotonic()
        await task.setup(desktop)
        ready = time.monotonic() - began
        steps = 0
        if solve:
            async for ops in task.oracle(desktop):
                await desktop.perform(ops, action_id=f"{steps}")
                steps += 1
        outcome = await judge(task, desktop, grace_s=None if solve else 0.0)
        if not isinstance(outcome, Scored):
            raise DeskhandError(f"{task.id} is unscored: {outcome.message}")
        return outcome.value, await miniwob.page_reward(desktop), steps, ready


async def plays(seeds: int) -> list[str]:
    """What is wrong with the solutions; each on desktops of its own."""
    wrong: list[str] = []
    setups: list[float] = []
    print(f"{'task':26} earned  page's own reward  do-nothing  steps")
    for name in sorted(solutions.STEPS):
        values, rewards, idle, steps = [], [], [], []
        for seed in range(seeds):
            task = miniwob.make_task(name, seed)
            try:
                value, reward, count, ready = await scored(task, solve=True)
                idle.append((await scored(task, solve=False))[0] if seed == 0 else 0.0)
            except DeskhandError as error:
                wrong.append(f"{task.id}: {error}")
                continue
            values.append(value)
            rewards.append(reward)
            steps.append(count)
            setups.append(ready)
            if value != 1.0 or value != reward or idle[-1] != 0.0:
                wrong.append(
                    f"{task.id}: scores {value:g}, the page's reward is {reward}, doing nothing scores {idle[-1]:g}"
                )
        given = sum(reward for reward in rewards if reward is not None)
        nothing, most = max(idle, default=0), max(steps, default=0)
        print(
            f"{name:26} {sum(values):g}/{seeds}    {given:g}/{seeds}             {nothing:g}           {most}",
            flush=True,
        )
    print(
        f"{len(solutions.STEPS)} solutions; set-up of a page on a fresh desktop: median {statistics.median(setups):.2f} s"
    )
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="3 seeds a page and 3 a solution instead of 1 and 1")
    options = parser.parse_args()
    wrong = asyncio.run(loads(3 if options.full else 1)) + asyncio.run(plays(3 if options.full else 1))
    for line in wrong:
        print(line)
    print(
        "missed: a page or a solution" if wrong else "every page begins and every solution earns the page's own reward"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
