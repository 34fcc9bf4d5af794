"""OSWorld routes for windows: `/setup/open_file`, `/setup/activate_window`, `/setup/close_window`.

Windows are found by the X server. A name without a matching window is not an error.
"""

from __future__ import annotations

import asyncio
import posixpath
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from deskhand.desktop.base import Window
from deskhand.server.active_leases import ActiveLease
from deskhand.server.osworld.request import crash, json_of

OPEN_TIMEOUT_S = 1800.0
_POLL_S = 0.05


async def open_file(lease: ActiveLease, request: Request) -> Response:
    """`POST /setup/open_file`: open a file, or start a program, and wait for a window that names it."""
    path = (await json_of(request)).get("path")
    if not path:
        return HTMLResponse("Path not supplied!", status_code=400)
    if not isinstance(path, str):
        raise crash()
    guest = lease.guest
    at = await guest.expand(path)
    if await guest.test("e", at):
        name = posixpath.basename(at.rstrip("/"))
        argv = ["xdg-open", at] if await guest.has_program("xdg-open") else ["gio", "open", at]
    elif await guest.has_program(path):
        name, argv = path, [path]
    else:
        return HTMLResponse(f"Application/file not found: {path}", status_code=404)
    try:
        await guest.launch(argv)
    except OSError as error:
        return HTMLResponse(f"Failed to open {path}. Error: {error}", status_code=500)
    if await _activate_when_shown(lease, request, {name, posixpath.splitext(name)[0]} if argv[0] != path else {name}):
        return HTMLResponse("File opened and window activated successfully")
    return HTMLResponse(f"Failed to find window for {name} within {OPEN_TIMEOUT_S:g} seconds.", status_code=500)


async def _activate_when_shown(lease: ActiveLease, request: Request, names: set[str]) -> bool:
    """Activate the first window with one of `names` in its title. Returns False on timeout or disconnect."""
    deadline = time.monotonic() + OPEN_TIMEOUT_S
    while time.monotonic() < deadline and not await request.is_disconnected():
        for window in await lease.desktop.windows():
            if any(name in window.title for name in names):
                await lease.desktop.activate_window(window)
                return True
        await asyncio.sleep(_POLL_S)
    return False


async def activate_window(lease: ActiveLease, request: Request) -> Response:
    body = await json_of(request)
    if not body.get("window_name"):
        return HTMLResponse("window_name required", status_code=400)
    for window in await _matching(lease, body):
        await lease.desktop.activate_window(window)
    return HTMLResponse("Window activated successfully")


async def close_window(lease: ActiveLease, request: Request) -> Response:
    body = await json_of(request)
    if "window_name" not in body:
        return HTMLResponse("window_name required", status_code=400)
    for window in await _matching(lease, body):
        await lease.desktop.close_window(window)
    return HTMLResponse("Window closed successfully.")


async def _matching(lease: ActiveLease, body: dict[str, Any]) -> list[Window]:
    """Return the first match by wmctrl's rules: case-insensitive substring, or equality if `strict`."""
    name = body["window_name"]
    if not isinstance(name, str):
        raise crash()
    for window in await lease.desktop.windows():
        text = window.wm_class if body.get("by_class", False) else window.title
        if text == name if body.get("strict", False) else name.lower() in text.lower():
            return [window]
    return []
