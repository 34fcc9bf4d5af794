"""Messages of a browser: what it cannot have sent, and a page that never stops sending."""

from __future__ import annotations

import pytest
from desktops import embedded

from deskhand.desktop.base import DesktopSpec
from deskhand.errors import GuestFailure, InfrastructureError
from deskhand.tasks import chromium
from deskhand.tasks.judge import CHECK_TIMEOUT_S

WRITES = "import os, sys\nwhile True:\n    os.read(3, 1)\n    os.write(4, sys.argv[1].encode() + b'\\0')"
EVENTS = 'import os\nwhile True: os.write(4, b\'{"method": "Network.dataReceived", "params": {}}\\0\')'


@pytest.mark.parametrize("message", ["x", "[1]", '{"error": 3}', '{"params": [1]}', "[" * 9000])
async def test_what_a_browser_does_not_send_was_written_by_a_guest(message: str) -> None:
    async with embedded(DesktopSpec("plain", 256, 192)) as desktop:
        pipes = await desktop.launch_piped(["/usr/bin/python3", "-c", WRITES, message])
        with pytest.raises(GuestFailure, match="wrote to the pipe of the browser"):
            await chromium.ChromiumSession(pipes).call("Target.getTargets")


async def test_a_page_that_sends_events_for_ever_is_an_outage_within_the_time_for_a_check(monkeypatch) -> None:
    assert chromium.REPLY_TIMEOUT_S < chromium.CALL_TIMEOUT_S < CHECK_TIMEOUT_S
    monkeypatch.setattr(chromium, "CALL_TIMEOUT_S", 1.0)
    async with embedded(DesktopSpec("plain", 256, 192)) as desktop:
        pipes = await desktop.launch_piped(["/usr/bin/python3", "-c", EVENTS])
        with pytest.raises(InfrastructureError, match=r"did not answer Target\.getTargets within 1 s"):
            await chromium.ChromiumSession(pipes).call("Target.getTargets")
