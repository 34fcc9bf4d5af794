"""Resets: every episode of a group starts from the same desktop."""

from __future__ import annotations

import asyncio
import random
from dataclasses import astuple
from pathlib import Path

import pytest
from desktops import home_contents

from deskhand.actions.ops import Click, Drag, Key, Point, Type, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import processes
from deskhand.desktop.pool import DesktopPool
from deskhand.tasks.suites.basics import make_task

GROUPS = [("terminal_run", 7, 32), ("code_copy", 3, 6)]
MESS = (
    "rm -rf .config/openbox Documents; echo x > .bashrc; mkdir -p a/b; ln -s /etc Desktop/etc; chmod 000 Downloads; "
    "xterm &"
)


async def make_a_mess(desktop, spec: DesktopSpec, seed: int) -> None:
    """What an episode may do: files, keyboard, windows, clipboard, pointer."""
    rng = random.Random(seed)
    space = screen_px(spec.width, spec.height)
    places = [Point(rng.randrange(spec.width), rng.randrange(spec.height), space) for _ in range(3)]
    ops = [
        Click(places[0]),
        Type(f"ж{chr(0x4E00 + seed)} {seed}"),
        Key(("ctrl", "a")),
        Key(("ctrl", "c")),
        Drag((places[1], places[2])),
    ]
    await desktop.perform(ops, action_id="mess")
    await desktop.run(["sh", "-c", MESS], timeout_s=5)


def program_name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


async def state_of(desktop) -> dict[str, object]:
    """Everything that an episode could notice: it is compared, not only hashed, so that a failure says what differs."""
    screen = (await desktop.observe()).content_hash
    session = desktop._session
    connection, setup = session.connection, session.connection.setup
    mapping = connection.core.GetKeyboardMapping(setup.min_keycode, setup.max_keycode - setup.min_keycode + 1).reply()
    selections = []
    for name in ("PRIMARY", "SECONDARY", "CLIPBOARD"):
        atom = connection.core.InternAtom(False, len(name), name).reply().atom
        selections += [name] if connection.core.GetSelectionOwner(atom).reply().owner else []
    running = [pid for pid in session.jail.pids() if processes.state(pid) not in ("", "Z")]
    return {
        "screen": screen,
        "pointer": connection.pointer(),
        "windows": [astuple(each)[1:] for each in await desktop.windows()],
        "programs": sorted(map(program_name, running)),
        "home": home_contents(session.home.root),
        "keyboard": bytes(mapping.keysyms.buf()),
        "selections": selections,
    }


@pytest.mark.parametrize(("family", "seed", "episodes"), GROUPS)
async def test_the_start_state_is_the_same_for_every_episode_of_a_group(family, seed, episodes):
    task = make_task(family, seed)
    spec = DesktopSpec(task.theme, task.width, task.height)
    fresh, staged = [], []
    async with DesktopPool(2, spec, prewarm=1) as pool:

        async def episode(number: int) -> None:
            lease = await pool.lease(spec)
            try:
                await lease.desktop.reset(spec)
                fresh.append(await state_of(lease.desktop))
                await task.setup(lease.desktop)
                staged.append(await state_of(lease.desktop))
                await make_a_mess(lease.desktop, spec, number)
            finally:
                await pool.release(lease)

        await asyncio.gather(*(episode(number) for number in range(episodes)))
    for states in (fresh, staged):
        assert len(states) == episodes
        assert all(state == states[0] for state in states)
    assert staged[0] != fresh[0]


async def test_every_part_of_the_state_changes_with_what_an_episode_does():
    """Otherwise the test above could not fail."""
    spec = DesktopSpec("plain", 320, 240)
    async with DesktopPool(1, spec, prewarm=0) as pool:
        desktop = (await pool.lease()).desktop
        before = await state_of(desktop)

        async def changed() -> set[str]:
            now = await state_of(desktop)
            return {name for name in now if now[name] != before[name]}

        assert await changed() == set()
        await desktop.push("file", b"x")
        assert await changed() == {"home"}
        await desktop.launch(["sleep", "60"])
        assert await changed() == {"home", "programs"}
        await desktop.launch(["l3afpad"])
        await desktop.wait_window("l3afpad")
        assert await changed() == {"home", "programs", "screen", "windows"}
        await desktop.perform([Type("ж"), Key(("ctrl", "a")), Key(("ctrl", "c"))], action_id="copy")
        assert await changed() == {"home", "programs", "screen", "windows", "keyboard", "selections"}
        await desktop.perform([Click(Point(5, 5, screen_px(320, 240)))], action_id="there")
        assert "pointer" in await changed()
