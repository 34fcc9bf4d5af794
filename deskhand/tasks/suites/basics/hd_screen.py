"""What the families on a screen of 1280x720 share. Invariant: a task is judged by its clauses, and its start state takes input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from deskhand.actions.ops import Click, Key, Op, Point, Type, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.clauses import judged
from deskhand.tasks.suites.basics.layout import UNREADABLE, WindowLike
from deskhand.tasks.task import CheckResult, Difficulty, ExampleEndStates, Milestone, Rect, Task

WIDTH, HEIGHT = 1280, 720
SPACE = screen_px(WIDTH, HEIGHT)
WINDOW_TIMEOUT_S = 60.0
"""Office programs and GIMP may take so long on a busy machine."""
REPLACE_BY_PX, REPLACE_ALL_PX = (200, 117), (74, 172)
"""In LibreOffice's dialog: the field from the upper left corner, the button from the upper right one."""
BROWSER_GRACE_S = 6.0
"""Within which a browser writes what it keeps."""

Clauses = Callable[[StageableDesktop], Awaitable[list[Finding]]]
Oracle = Callable[[StageableDesktop], AsyncIterator[list[Op]]]


def hd_task(
    family: str,
    seed: int,
    difficulty: Difficulty,
    *,
    instruction: str,
    setup: Callable[[StageableDesktop], Awaitable[None]],
    clauses: Clauses,
    oracle: Oracle,
    max_steps: int,
    theme: str = "plain",
    milestones: tuple[Milestone, ...] = (),
    grace_s: float | None = None,
    metadata: dict[str, Any] | None = None,
    forged: dict[str, Callable[[], bytes]] | None = None,
    end_states: Callable[[], ExampleEndStates] | None = None,
) -> Task:
    """A task of the suite on the wide screen."""

    async def check(desktop: StageableDesktop) -> CheckResult:
        return judged(*await clauses(desktop))

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        return None, []

    return Task(
        id=f"basics/{family}/{seed}",
        family=family,
        suite="basics",
        seed=seed,
        instruction=instruction,
        width=WIDTH,
        height=HEIGHT,
        max_steps=max_steps,
        setup=setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        theme=theme,
        milestones=milestones,
        difficulty=difficulty,
        settle_grace_s=grace_s,
        metadata=metadata or {},
        forged_files=forged or {},
        example_end_states=end_states,
    )


def press(*chords: str, times: int = 1) -> list[Op]:
    """Ops for chords such as "ctrl+s", one after the other, `times` over."""
    return [Key(tuple(chord.split("+"))) for chord in chords] * times


def click_at(x: int, y: int, count: int = 1) -> Click:
    return Click(Point(x, y, SPACE), count=count)


def click_in(window: WindowLike, across: float = 0.5, down: float = 0.5) -> Click:
    """A click in a window's client area, at shares of its width and height."""
    return click_at(window.x + int(window.width * across), window.y + int(window.height * down))


async def file_bytes(desktop: StageableDesktop, path: str) -> bytes | None:
    """A file's bytes; None when there is no such plain file."""
    try:
        return await desktop.pull(path)
    except UNREADABLE:
        return None


async def wait_still(desktop: StageableDesktop, quiet_s: float = 0.5, timeout_s: float = 20.0) -> None:
    """Wait until the screen has not changed for `quiet_s`; a screen that never rests is left as it is after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline, same_since, last = loop.time() + timeout_s, loop.time(), ""
    while loop.time() < deadline and (loop.time() - same_since < quiet_s or not last):
        now = (await desktop.observe()).content_hash
        if now != last:
            last, same_since = now, loop.time()
        await asyncio.sleep(0.05)


async def wait_responsive(
    desktop: StageableDesktop, probe: str = "down", back: str = "ctrl+home", timeout_s: float = 20.0
) -> None:
    """Wait until a program that was just started takes keys: press `probe` until the screen changes, then `back`.

    Raises `InfrastructureError` when it never does.
    """
    loop = asyncio.get_running_loop()
    deadline, count = loop.time() + timeout_s, 0
    await wait_still(desktop)
    while True:
        before = (await desktop.observe()).content_hash
        after = await desktop.perform(press(probe), action_id=f"awake-{probe}-{loop.time()}")
        if after.content_hash != before:
            break
        count += 1
        if loop.time() > deadline:
            raise InfrastructureError(
                f"the program took none of {count} keys within {timeout_s:g} s; did it start well?"
            )
        await asyncio.sleep(0.2)
    await desktop.perform(press(back), action_id=f"awake-{back}-{loop.time()}")
    await wait_still(desktop, 0.3)


async def shown(desktop: StageableDesktop, title: str, timeout_s: float = 10.0) -> WindowLike:
    """The newest window with this piece of title, once it is there and the screen is still."""
    window = (await desktop.wait_window(title, timeout_s=timeout_s))[-1]
    await wait_still(desktop, 0.2)
    return window


async def gone(desktop: StageableDesktop, title: str, timeout_s: float = 5.0) -> None:
    """Wait until no window has this piece of title; returns at `timeout_s` in any case."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while any(title in window.title for window in await desktop.windows()):
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(0.05)


async def written(desktop: StageableDesktop, path: str, before: bytes | None, timeout_s: float = 10.0) -> None:
    """Wait until a file is there and is not `before`; returns at `timeout_s` in any case: the judge has the last word."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while (data := await file_bytes(desktop, path)) in (None, before, b""):
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(0.05)
    while (again := await file_bytes(desktop, path)) != data and asyncio.get_running_loop().time() < deadline:
        data = again
        await asyncio.sleep(0.1)


async def replace_all(desktop: StageableDesktop, old: str, new: str) -> AsyncIterator[list[Op]]:
    """LibreOffice's dialog to replace a text everywhere. Its upper part is the same in all of its programs."""
    title = "Find and Replace"
    yield press("ctrl+h")
    window = await shown(desktop, title)
    yield [Type(old)]
    yield [click_at(window.x + REPLACE_BY_PX[0], window.y + REPLACE_BY_PX[1]), Type(new)]
    yield [click_at(window.x + window.width - REPLACE_ALL_PX[0], window.y + REPLACE_ALL_PX[1])]
    await wait_still(desktop)
    while any(title in window.title for window in await desktop.windows()):
        yield press("esc")  # first what was found, then the dialog
        await wait_still(desktop, 0.3)


async def side_by_side(desktop: StageableDesktop, left: WindowLike, right: WindowLike, share: float = 0.6) -> None:
    """Two windows beside each other on the whole screen, `left` with `share` of the width."""
    middle = int(WIDTH * share)
    await desktop.place_window(left, 4, 24, middle - 8, HEIGHT - 32)
    await desktop.place_window(right, middle + 4, 24, WIDTH - middle - 8, HEIGHT - 32)
    await wait_still(desktop, 0.3)


def chosen(rng: Any, texts: Sequence[str], count: int) -> list[str]:
    """`count` of the texts, none twice."""
    return rng.sample(sorted(texts), count)
