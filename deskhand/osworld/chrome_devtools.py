"""Chrome's tabs through its DevTools port inside the guest.

The host opens no connection to the guest: a small guest program makes the request, and its output is untrusted.
"""

from __future__ import annotations

import asyncio
from typing import Any

from deskhand.errors import InfrastructureError
from deskhand.server.guest import Guest
from deskhand.tasks import document_readers
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.subprocess_call import read_in_subprocess

PORT = 1337
"""Port that tasks configure Chrome with."""
MAX_ATTEMPTS, RETRY_S = 30, 0.5
TIMEOUT_RETURNCODE = 124
_REQUEST_SCRIPT = """\
import sys, urllib.parse, urllib.request
port, method, path = sys.argv[1:4]
if len(sys.argv) > 4:
    path += urllib.parse.quote(sys.argv[4], safe=":/?&=%#")
request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as reply:
    sys.stdout.write(reply.read().decode())
"""


class DevToolsUnavailable(InfrastructureError):
    """The desktop works, but Chrome does not listen at the port."""


async def list_tabs(guest: Guest) -> list[dict[str, str]]:
    """Return `title`, `url` and `id` of each tab, as OSWorld's getter does.

    Raises `DevToolsUnavailable`, or `InfrastructureError` if the desktop fails.
    """
    entries = await _request(guest, "GET", "/json/list")  # any guest program can listen at this port
    tabs = [tab for tab in entries if isinstance(tab, dict)] if isinstance(entries, list) else []
    return [{key: str(tab.get(key, "")) for key in ("title", "url", "id")} for tab in tabs if tab.get("type") == "page"]


async def open_tabs(guest: Guest, urls: list[str]) -> None:
    """Open a tab for each URL and close the first tab that was open before."""
    before = await _wait_tabs(guest)
    for url in urls:
        await _request(guest, "PUT", "/json/new?", url)
    if urls and before:
        await _request(guest, "GET", f"/json/close/{before[0]['id']}")


async def close_tabs(guest: Guest, urls: list[str]) -> None:
    for tab in await _wait_tabs(guest):
        if any(tab["url"].rstrip("/") == url.rstrip("/") for url in urls):
            await _request(guest, "GET", f"/json/close/{tab['id']}")


async def _wait_tabs(guest: Guest) -> list[dict[str, str]]:
    """Return the tabs as soon as Chrome listens."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return await list_tabs(guest)
        except DevToolsUnavailable:
            await asyncio.sleep(RETRY_S)
    return await list_tabs(guest)


async def _request(guest: Guest, method: str, path: str, url: str | None = None) -> Any:
    arguments = [str(PORT), method, path, *([url] if url is not None else [])]
    result = await guest.desktop.run(["python3", "-I", "-S", "-c", _REQUEST_SCRIPT, *arguments])
    if result.returncode == TIMEOUT_RETURNCODE:
        raise InfrastructureError(f"the request to Chrome at port {PORT} timed out in the guest")
    if result.returncode != 0:
        message = (result.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise DevToolsUnavailable(f"Chrome does not respond at port {PORT}: {message[:200]}")
    try:
        return await read_in_subprocess(document_readers.read_json, result.stdout)
    except InvalidDocument:
        return result.stdout.decode(errors="replace")
