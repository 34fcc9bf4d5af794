"""The screen as people watch it: read from memory at any time, without a request to the desktop."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from desktops import embedded
from patience import limit

from deskhand.actions.ops import Wait
from deskhand.desktop.base import DesktopSpec, HasLivePixels
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.screen_reader import Capture

SMALL = DesktopSpec("plain", 320, 240)


async def test_live_pixels_are_those_of_the_screen_until_the_desktop_closes() -> None:
    assert isinstance(LocalDesktop(), HasLivePixels)
    assert LocalDesktop().live_pixels() is None, "before the first reset"
    async with embedded(SMALL) as desktop:
        frame = (await desktop.observe()).without_cursor()
        live = desktop.live_pixels()
        assert live is not None
        assert np.array_equal(live[..., :3], frame.bgrx[..., :3])
        half = desktop.live_pixels(2)
        assert half is not None
        assert np.array_equal(half, live[::2, ::2])
        await desktop.reset(DesktopSpec("plain", 400, 300))
        again = desktop.live_pixels()
        assert again is not None
        assert again.shape == (300, 400, 4)
        await desktop.close()
        assert desktop.live_pixels() is None
        assert live.shape == (240, 320, 4), "copies stay valid"


async def test_a_screen_is_read_while_an_action_is_performed() -> None:
    async with embedded(SMALL) as desktop:
        waiting = asyncio.create_task(desktop.perform([Wait(limit(3))], action_id="waits"))
        await asyncio.sleep(0.1)
        assert desktop.live_pixels() is not None
        assert not waiting.done()
        await waiting


@pytest.mark.parametrize("capture", ["shared", "server"])
async def test_a_server_without_mapped_memory_has_no_live_pixels_and_works(capture: Capture) -> None:
    async with embedded(SMALL, capture=capture) as desktop:
        live = desktop.live_pixels()
        assert live is None or live.shape == (240, 320, 4)
        assert (await desktop.observe()).size == (320, 240)
