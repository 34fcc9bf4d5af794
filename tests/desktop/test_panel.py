"""The theme with a panel: what it shows, and that its programs are no windows of the user."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from desktops import ISOLATIONS, embedded, point_on
from patience import limit

from deskhand.actions.ops import Click, Key, Type
from deskhand.desktop.applications.catalog import PROFILES
from deskhand.desktop.base import DesktopSpec, Frame
from deskhand.desktop.local.desktop import LocalDesktop

SMALL = DesktopSpec("panel", 1280, 720)
pytestmark = pytest.mark.skipif(
    not PROFILES["panel"].installed, reason="LXPanel is not installed; as root: deskhand desktop install panel"
)
at = point_on(SMALL)
MENU, EDITOR, FIRST_ICON, FIRST_TASK = at(60, 704), at(168, 704), at(60, 30), at(300, 704)


def is_empty(frame: Frame) -> bool:
    """Whether nothing is on the screen above the panel."""
    return bool((frame.bgrx[:-32, :, :3] == frame.bgrx[0, 0, :3]).all())


async def until(desktop: LocalDesktop, holds: Callable[[Frame], Any]) -> Frame:
    """The first settled screen on which `holds` is true."""
    for _ in range(int(10 * limit(20))):
        frame = await desktop.observe()
        if holds(frame):
            return frame
        await asyncio.sleep(0.1)
    raise AssertionError("the screen does not change as expected")


async def shown(desktop: LocalDesktop, path: str) -> bytes:
    """The file, once it is there."""
    for _ in range(int(10 * limit(20))):
        try:
            return await desktop.pull(path)
        except FileNotFoundError:
            await asyncio.sleep(0.1)
    raise AssertionError(f"{path} was not written")


@pytest.mark.parametrize(("size", "level"), [((1280, 720), ISOLATIONS[-1]), ((1920, 1080), ISOLATIONS[0])])
async def test_the_first_screen_is_the_same_each_time_and_shows_no_window(size: tuple[int, int], level: str) -> None:
    seen = set[str]()
    for _ in range(2):
        async with embedded(DesktopSpec("panel", *size), isolation_level=level) as desktop:
            frame = await desktop.observe()
            assert await desktop.windows() == []
            seen.add(frame.content_hash)
            panel = frame.bgrx[-32:, :200, :3]
            assert len(np.unique(panel.reshape(-1, 3), axis=0)) > 50  # icons and text
            assert is_empty(frame)
    assert len(seen) == 1


async def test_a_file_appears_on_the_desktop_and_opens_in_its_application(desktop: LocalDesktop) -> None:
    await desktop.push("Desktop/notes.txt", b"milk\n")
    await until(desktop, lambda frame: (frame.bgrx[:60, 20:110, :3] != frame.bgrx[300, 640, :3]).any())
    await desktop.perform([Click(FIRST_ICON, "left", 2)], action_id="open")
    (window,) = await desktop.wait_window("mousepad", timeout_s=limit(30))
    assert "notes.txt" in window.title
    assert window.y + window.height <= 720 - 32


async def test_the_panel_starts_programs_without_the_limit_of_a_command_and_lists_their_windows(
    desktop: LocalDesktop,
) -> None:
    await desktop.perform([Click(at(140, 704))], action_id="terminal")
    await desktop.wait_window("xfce4-terminal", timeout_s=limit(30))
    await desktop.observe()
    await desktop.perform([Click(at(640, 360))], action_id="focus")
    await desktop.perform([Type("head -c 17M /dev/zero > big; ulimit -f > limit\n")], action_id="type")
    assert await shown(desktop, "limit")
    assert (await desktop.run(["stat", "-c", "%s", "big"])).stdout == b"17825792\n"
    await desktop.perform([Click(FIRST_TASK)], action_id="minimize")  # the active window's button
    await until(desktop, is_empty)


async def test_the_menu_lists_installed_applications_and_closes_by_escape(desktop: LocalDesktop) -> None:
    await desktop.perform([Click(MENU)], action_id="menu")
    await until(desktop, lambda frame: (frame.bgrx[600:688, 1:160, :3] != frame.bgrx[0, 0, :3]).mean() > 0.9)
    assert await desktop.windows() == []
    await desktop.perform([Key(("esc",))], action_id="close")
    await until(desktop, is_empty)


async def test_a_killed_panel_is_no_failure_of_the_desktop(desktop: LocalDesktop) -> None:
    await desktop.run(["pkill", "-SEGV", "lxpanel"])
    await desktop.run(["pkill", "-KILL", "pcmanfm"])
    await desktop.observe()
    assert await desktop.windows() == []
    assert (await desktop.run(["pgrep", "-x", "lxpanel|pcmanfm"])).returncode == 1


async def test_the_panels_modules_add_no_entry_to_the_file_managers_places() -> None:
    async with embedded(DesktopSpec("plain", 1280, 720)) as desktop:
        await desktop.launch(["pcmanfm", "/home/user"])
        (window,) = await desktop.wait_window("pcmanfm", timeout_s=limit(30))
        frame = await desktop.observe()
        entries = frame.bgrx[window.y + 88 : window.y + 280, window.x + 2 : window.x + 98, :3]
        rows = (entries != entries[-1, -1]).any(axis=(1, 2))
        assert rows[:50].any()
        assert not rows[60:].any()  # nothing below Home Folder and Desktop
