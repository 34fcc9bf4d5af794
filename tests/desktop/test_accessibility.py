"""Accessibility trees in OSWorld's form."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from xml.etree import ElementTree

import pytest
from desktops import embedded
from patience import limit

from deskhand.actions.ops import Key, Type, Wait
from deskhand.desktop.applications.catalog import PROFILES
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.guest_user import guest_uids, has_name
from deskhand.desktop.local.isolation import available_isolation
from deskhand.errors import ConfigError, InfrastructureError

TELLING = DesktopSpec("plain", 640, 480, accessibility=True)
SPACE = "https://accessibility.ubuntu.example.org/ns/"
NAMED = not guest_uids() and has_name(os.getuid())
ISOLATIONS = ["namespaces"] * (available_isolation()[0] == "namespaces") + ["plain"] * NAMED


@pytest.fixture(params=ISOLATIONS)
async def desktop(request):
    async with embedded(TELLING, isolation_level=request.param) as desktop:
        yield desktop


async def tree_of(desktop, **options) -> ElementTree.Element:
    text = await desktop.accessibility_tree(**options)
    assert text is not None
    return ElementTree.fromstring(text)


async def test_the_tree_has_an_editors_text_and_menus_with_positions(desktop):
    await desktop.launch(["mousepad"])
    (window,) = await desktop.wait_window("mousepad")
    window = await desktop.place_window(window, 40, 60, 400, 300)
    await desktop.perform([Type("some words")], action_id="type")
    root = await tree_of(desktop)
    assert root.tag == "desktop-frame"
    assert "truncated" not in root.attrib
    (application,) = (each for each in root if each.get("name") == "mousepad")
    assert application.tag == "application"
    (text,) = (each for each in application.iter("text") if each.text)
    assert text.text == "some words"
    assert text.get(f"{{{SPACE}state}}editable") == "true"
    menus = {each.get("name"): each for each in application.iter("menu")}
    assert {"File", "Edit", "Search"} <= set(menus)
    place, size = (menus["File"].get(f"{{{SPACE}component}}{name}") or "" for name in ("screencoord", "size"))
    x, y = (int(part) for part in place.strip("()").split(","))
    width, height = (int(part) for part in size.strip("()").split(","))
    assert window.x <= x < window.x + 100
    assert window.y <= y < window.y + 60
    assert min(width, height) > 10


async def test_a_hanging_program_does_not_exceed_the_time_limit(desktop):
    await desktop.launch(["mousepad"])
    await desktop.wait_window("mousepad")
    await tree_of(desktop)
    await desktop.run(["pkill", "-STOP", "mousepad"])
    async with asyncio.timeout(limit(60)):  # the program stays stopped
        with suppress(InfrastructureError):
            root = await tree_of(desktop, timeout_s=1.0)
            assert not list(root.iter("menu"))


@pytest.mark.skipif(NAMED, reason="guests of this machine have a name")
async def test_a_user_without_a_name_gets_a_config_error():
    with pytest.raises(ConfigError, match="namespaces"):
        await embedded(TELLING, isolation_level="plain").__aenter__()


async def test_there_is_no_tree_unless_the_spec_enables_it():
    async with embedded(DesktopSpec("plain", 320, 240)) as desktop:
        assert await desktop.accessibility_tree() is None
        assert b"DBUS_SESSION_BUS_ADDRESS=disabled:" in (await desktop.run(["env"])).stdout


@pytest.mark.skipif(not PROFILES["calc"].installed, reason="not installed; as root: deskhand desktop install calc")
async def test_a_spreadsheet_lists_only_visible_cells():
    async with embedded(DesktopSpec("plain", 1280, 720, accessibility=True)) as desktop:
        profile = PROFILES["calc"]
        await desktop.launch(list(profile.argv))
        await desktop.wait_window(profile.window, timeout_s=60)
        await desktop.observe()
        cells, tries = [], 0
        async with asyncio.timeout(limit(60)):
            # A window that is there takes no keys yet, and tells of cells late.
            while "Ada" not in {each.text for each in cells}:
                tries += 1
                await desktop.perform([Key(("ctrl", "Home")), Type("Ada\t12\n"), Wait(0.5)], action_id=f"type {tries}")
                root = await tree_of(desktop, timeout_s=30.0)
                cells = [each for each in root.iter("table-cell") if each.get("name")]
        assert {"A1", "B1", "C5"} <= {each.get("name") for each in cells}
        assert len(cells) < 3000
