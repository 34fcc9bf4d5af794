"""Resets: every episode of a group starts from the same desktop."""

from __future__ import annotations

import asyncio
import random

import pytest

from deskhand.actions.ops import Click, Drag, Key, Point, Type, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.pool import DesktopPool
from deskhand.tasks.suites.basics import make_task

GROUPS = [("terminal_run", 7, 32), ("code_copy", 3, 6)]
MESS = (
    "rm -rf .config/openbox Documents; echo x > .bashrc; mkdir -p a/b; ln -s /etc Desktop/etc; chmod 000 Downloads; "
    "xterm &"
)


async def make_a_mess(desktop, template: DesktopSpec, seed: int) -> None:
    """What an episode may do: files, keyboard, windows, clipboard, pointer."""
    rng = random.Random(seed)
    space = screen_px(template.width, template.height)
    places = [Point(rng.randrange(template.width), rng.randrange(template.height), space) for _ in range(3)]
    ops = [
        Click(places[0]),
        Type(f"ж{chr(0x4E00 + seed)} {seed}"),
        Key(("ctrl", "a")),
        Key(("ctrl", "c")),
        Drag((places[1], places[2])),
    ]
    await desktop.perform(ops, action_id="mess")
    await desktop.run(["sh", "-c", MESS], timeout_s=5)


@pytest.mark.parametrize(("family", "seed", "episodes"), GROUPS)
async def test_the_start_state_is_the_same_for_every_episode_of_a_group(family, seed, episodes):
    task = make_task(family, seed)
    template = DesktopSpec(task.theme, task.width, task.height)
    fresh, staged = [], []
    async with DesktopPool(2, template, prewarm=1) as pool:

        async def episode(number: int) -> None:
            lease = await pool.lease(template)
            try:
                await lease.desktop.reset(template)
                fresh.append(await lease.desktop.fingerprint())
                await task.setup(lease.desktop)
                staged.append(await lease.desktop.fingerprint())
                await make_a_mess(lease.desktop, template, number)
            finally:
                await pool.release(lease)

        limit = asyncio.Semaphore(2)

        async def bounded(number: int) -> None:
            async with limit:
                await episode(number)

        await asyncio.gather(*(bounded(number) for number in range(episodes)))
    for prints in (fresh, staged):
        assert len(prints) == episodes
        assert [one.differs_from(prints[0]) for one in prints] == [[]] * episodes
    assert staged[0].differs_from(fresh[0])


async def test_the_fingerprint_covers_each_part():
    """Otherwise the test above could not fail."""
    template = DesktopSpec("plain", 320, 240)
    async with DesktopPool(1, template, prewarm=0) as pool:
        desktop = (await pool.lease()).desktop
        before = await desktop.fingerprint()
        assert (await desktop.fingerprint()).differs_from(before) == []
        await desktop.push("file", b"x")
        assert seen(await desktop.fingerprint(), before) == {"home"}
        await desktop.launch(["sleep", "60"])
        assert seen(await desktop.fingerprint(), before) == {"home", "programs"}
        await desktop.launch(["l3afpad"])
        await desktop.wait_window("l3afpad")
        assert seen(await desktop.fingerprint(), before) == {"home", "programs", "screen", "windows"}
        await desktop.perform([Type("ж"), Key(("ctrl", "a")), Key(("ctrl", "c"))], action_id="copy")
        assert seen(await desktop.fingerprint(), before) == {
            "home",
            "programs",
            "screen",
            "windows",
            "keyboard",
            "selections",
        }
        await desktop.perform([Click(Point(5, 5, screen_px(320, 240)))], action_id="there")
        assert "pointer" in seen(await desktop.fingerprint(), before)


def seen(now, before) -> set[str]:
    return {line.partition(":")[0] for line in now.differs_from(before)}
