"""Chrome's tabs, by its DevTools port inside the guest. Invariant: the host opens no connection to the guest; a small program of
the guest asks, and what it says is the guest's word.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from deskhand.errors import InfrastructureError
from deskhand.server.guest import Guest

PORT = 1337
"""Where tasks let Chrome listen."""
TRIES, BETWEEN_S = 30, 0.5
TIME_IS_UP = 124
_ASK = """\
import sys, urllib.parse, urllib.request
port, method, path = sys.argv[1:4]
if len(sys.argv) > 4:
    path += urllib.parse.quote(sys.argv[4], safe=":/?&=%#")
request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as reply:
    sys.stdout.write(reply.read().decode())
"""


class NotListening(InfrastructureError):
    """The desktop is well, and no Chrome listens at the port."""


async def tabs(guest: Guest) -> list[dict[str, str]]:
    """`title`, `url` and `id` of each tab, as OSWorld's getter has them. Raises `NotListening`, and `InfrastructureError` where the
    desktop fails.
    """
    found = await _told(guest, "GET", "/json/list")
    return [
        {key: str(tab.get(key, "")) for key in ("title", "url", "id")} for tab in found if tab.get("type") == "page"
    ]


async def open_tabs(guest: Guest, urls: list[str]) -> None:
    """Open a tab for each address; the tab that was there when the first has come is closed."""
    before = await _patiently(guest)
    for url in urls:
        await _told(guest, "PUT", "/json/new?", url)
    if urls and before:
        await _told(guest, "GET", f"/json/close/{before[0]['id']}")


async def close_tabs(guest: Guest, urls: list[str]) -> None:
    """Close the tabs of these addresses."""
    for tab in await _patiently(guest):
        if any(tab["url"].rstrip("/") == url.rstrip("/") for url in urls):
            await _told(guest, "GET", f"/json/close/{tab['id']}")


async def _patiently(guest: Guest) -> list[dict[str, str]]:
    """The tabs, as soon as Chrome listens."""
    for _ in range(TRIES - 1):
        try:
            return await tabs(guest)
        except NotListening:
            await asyncio.sleep(BETWEEN_S)
    return await tabs(guest)


async def _told(guest: Guest, method: str, path: str, address: str | None = None) -> Any:
    words = ["python3", "-I", "-S", "-c", _ASK, str(PORT), method, path, *([address] if address is not None else [])]
    done = await guest.desktop.run(words)
    if done.returncode == TIME_IS_UP:
        raise InfrastructureError(f"the guest's Python did not end while it asked Chrome at its port {PORT}")
    if done.returncode != 0:
        complaint = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise NotListening(f"Chrome does not answer at its port {PORT}: {complaint[:200]}")
    try:
        return json.loads(done.stdout)
    except (ValueError, RecursionError):
        return done.stdout.decode(errors="replace")
