"""Whether the programs of a desktop are at rest, which decides how often the judge reads a score."""

from __future__ import annotations

import time

import pytest
from desktops import ISOLATIONS, embedded
from patience import limit

from deskhand.desktop.base import DesktopSpec

LOOP = "setsid sh -c 'while :; do :; done' &"


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_loop_keeps_a_desktop_busy(isolation: str) -> None:
    async with embedded(DesktopSpec(), isolation_level=isolation) as desktop:
        assert await desktop.wait_until_idle(limit(5))
        await desktop.shell(LOOP)
        began = time.monotonic()
        assert not await desktop.wait_until_idle(1.0)
        assert time.monotonic() - began >= 1.0
