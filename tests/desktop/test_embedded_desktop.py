"""The embedded desktop on a real X server with real applications."""

from __future__ import annotations

import pytest

from deskhand.actions.ops import REL_1000, Click, Key, Point, Type, screen_px
from deskhand.desktop.base import Template
from deskhand.desktop.embedded.desktop import EmbeddedDesktop
from deskhand.errors import AgentError

SMALL = Template("plain", 320, 240)


@pytest.fixture
async def desktop():
    desktop = EmbeddedDesktop()
    await desktop.reset(SMALL)
    yield desktop
    await desktop.close()


async def test_typed_unicode_lands_in_a_file_saved_by_the_editor(desktop):
    await desktop.push("note.txt", b"")
    await desktop.launch(["mousepad", "note.txt"])
    (window,) = await desktop.wait_window("mousepad")
    window = await desktop.place_window(window, 10, 30, 300, 200)
    assert (window.x, window.y) == (10, 30)
    await desktop.observe()
    middle = Point(160, 150, screen_px(320, 240))
    text = "héllo ąę Ж 你好 🎉 A~B{}|"
    await desktop.perform([Click(middle), Type(text), Key(("ctrl", "s"))], action_id="type")
    assert (await desktop.pull("note.txt")).decode().strip() == text


async def test_an_action_id_is_performed_once(desktop):
    await desktop.launch(["mousepad"])
    await desktop.wait_window("mousepad")
    await desktop.observe()
    first = await desktop.perform([Type("x")], action_id="same")
    again = await desktop.perform([Type("x")], action_id="same")
    assert again is first
    await desktop.perform([Key(("ctrl", "a")), Key(("ctrl", "c"))], action_id="copy")
    assert await desktop.clipboard() == "x"


async def test_a_bad_op_performs_nothing(desktop):
    before = (await desktop.observe()).cursor
    with pytest.raises(AgentError, match="1001"):
        await desktop.perform([Click(Point(10, 10, REL_1000)), Click(Point(1001, 10, REL_1000))], action_id="bad")
    assert (await desktop.observe()).cursor == before
