"""Helpers of the families on a 1280x720 screen: ops, waits, and windows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from deskhand.actions.ops import Click, Done, Key, Op, Point, screen_px
from deskhand.desktop.base import StageableDesktop, Window
from deskhand.errors import InfrastructureError
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.suites.basics.scenario import Oracle, Scenario
from deskhand.tasks.suites.basics.screen_search import wait_until

WIDTH, HEIGHT = 1280, 720
SPACE = screen_px(WIDTH, HEIGHT)
LEFT_PX = (4, 24)
"""Where the client area of the left one of two windows begins."""
WINDOW_TIMEOUT_S = 60.0
"""Office programs and GIMP may start slowly on a busy machine."""


Steps = Oracle | Sequence[list[Op]]
"""Steps of an oracle; a list if they do not depend on the desktop."""


class HdScenario(Scenario):
    """A scenario on a 1280x720 screen."""

    width, height = WIDTH, HEIGHT


def press(*chords: str, times: int = 1) -> list[Op]:
    """Return the ops for chords such as "ctrl+s", in order, `times` over."""
    return [Key(tuple(chord.split("+"))) for chord in chords] * times


def click_at(x: int, y: int, count: int = 1) -> Click:
    return Click(Point(x, y, SPACE), count=count)


def click_in(window: Window, across: float = 0.5, down: float = 0.5) -> Click:
    """Return a click in a window's client area, at shares of its width and height."""
    return click_at(window.x + int(window.width * across), window.y + int(window.height * down))


async def wait_still(desktop: StageableDesktop, quiet_s: float = 0.5, timeout_s: float = 20.0) -> None:
    """Wait until the screen has not changed for `quiet_s`; return after `timeout_s` in any case."""
    loop = asyncio.get_running_loop()
    deadline, same_since, last = loop.time() + timeout_s, loop.time(), ""
    while loop.time() < deadline and (loop.time() - same_since < quiet_s or not last):
        now = (await desktop.observe()).content_hash
        if now != last:
            last, same_since = now, loop.time()
        await asyncio.sleep(0.05)


async def wait_responsive(desktop: StageableDesktop, probe: str = "down", back: str = "ctrl+home") -> None:
    """Wait until a program that was just started reacts to keys: press `probe` until the screen changes, then `back`.

    Raises `InfrastructureError` if it does not within 20 s.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 20.0
    await wait_still(desktop)
    before = after = (await desktop.observe()).content_hash
    while after == before:
        if loop.time() > deadline:
            raise InfrastructureError("the program took no key within 20 s; did it start well?")
        before = (await desktop.observe()).content_hash
        after = (await desktop.perform(press(probe), action_id=f"probe-{loop.time()}")).content_hash
        await asyncio.sleep(0.2 if after == before else 0.0)
    await desktop.perform(press(back), action_id=f"probe-back-{loop.time()}")
    await wait_still(desktop, 0.3)


async def wait_shown(desktop: StageableDesktop, title: str) -> Window:
    """Return the newest window with this part of a title, once it is open and the screen is still."""
    window = (await desktop.wait_window(title, timeout_s=10.0))[-1]
    await wait_still(desktop, 0.2)
    return window


async def wait_closed(desktop: StageableDesktop, title: str) -> None:
    """Wait until no window has this part of a title; return after 5 s in any case."""

    async def is_closed() -> bool:
        return all(title not in window.title for window in await desktop.windows())

    await wait_until(is_closed, 5.0)


async def wait_written(desktop: StageableDesktop, path: str, before: bytes | None, timeout_s: float = 10.0) -> None:
    """Wait until a file differs from `before` and is complete; return after `timeout_s` in any case."""
    last: bytes | None = None

    async def is_written() -> bool:
        nonlocal last
        last, previous = await read_file(desktop, path), last
        return last == previous and last not in (None, before, b"")

    await wait_until(is_written, timeout_s, interval_s=0.1)


async def play(desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    """Yield the steps."""
    if callable(steps):
        async for ops in steps(desktop):
            yield ops
    else:
        for ops in steps:
            yield ops


def until_written(path: str, steps: Steps, *last: list[Op]) -> Oracle:
    """Return an oracle that takes `steps` and `last`, and is done when the program has written the file `path`."""

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        before = await read_file(desktop, path)
        async for ops in play(desktop, steps):
            yield ops
        for ops in last:
            yield ops
        await wait_written(desktop, path, before)
        yield [Done()]

    return oracle


async def side_by_side(desktop: StageableDesktop, left: Window, right: Window) -> None:
    """Place two windows next to each other on the whole screen, `left` with 60 % of the width."""
    middle = int(WIDTH * 0.6)
    await desktop.place_window(left, *LEFT_PX, middle - 8, HEIGHT - 32)
    await desktop.place_window(right, middle + LEFT_PX[0], LEFT_PX[1], WIDTH - middle - 8, HEIGHT - 32)
    await wait_still(desktop, 0.3)
