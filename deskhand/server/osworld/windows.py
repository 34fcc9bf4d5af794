"""Windows: `/setup/open_file`, `/setup/activate_window`, `/setup/close_window`.

Invariant: windows are found and acted on by the X server's word; a name that fits no window changes nothing, and is no error.
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

OPEN_S = 1800.0
_POLL_S = 0.05


async def open_file(held: ActiveLease, request: Request) -> Response:
    """`POST /setup/open_file`: a file by the program for its kind, or a program; waits for a window that names it."""
    path = (await json_of(request)).get("path")
    if not path:
        return HTMLResponse("Path not supplied!", status_code=400)
    if not isinstance(path, str):
        raise crash()
    guest = held.guest
    at = await guest.expand(path)
    if await guest.test("e", at):
        name = posixpath.basename(at.rstrip("/"))
        argv = ["xdg-open", at] if await guest.finds("xdg-open") else ["gio", "open", at]
    elif await guest.finds(path):
        name, argv = path, [path]
    else:
        return HTMLResponse(f"Application/file not found: {path}", status_code=404)
    try:
        await guest.launch(argv)
    except OSError as error:
        return HTMLResponse(f"Failed to open {path}. Error: {error}", status_code=500)
    if await _shown(held, request, {name, posixpath.splitext(name)[0]} if argv[0] != path else {name}):
        return HTMLResponse("File opened and window activated successfully")
    return HTMLResponse(f"Failed to find window for {name} within {OPEN_S:g} seconds.", status_code=500)


async def _shown(held: ActiveLease, request: Request, names: set[str]) -> bool:
    """Whether a window with one of `names` in its title came up in time, for a client that still listens; it is activated."""
    deadline = time.monotonic() + OPEN_S
    while time.monotonic() < deadline and not await request.is_disconnected():
        for window in await held.desktop.windows():
            if any(name in window.title for name in names):
                await held.desktop.activate_window(window)
                return True
        await asyncio.sleep(_POLL_S)
    return False


async def activate_window(held: ActiveLease, request: Request) -> Response:
    """`POST /setup/activate_window`."""
    body = await json_of(request)
    if not body.get("window_name"):
        return HTMLResponse("window_name required", status_code=400)
    for window in await _named(held, body):
        await held.desktop.activate_window(window)
    return HTMLResponse("Window activated successfully")


async def close_window(held: ActiveLease, request: Request) -> Response:
    """`POST /setup/close_window`."""
    body = await json_of(request)
    if "window_name" not in body:
        return HTMLResponse("window_name required", status_code=400)
    for window in await _named(held, body):
        await held.desktop.close_window(window)
    return HTMLResponse("Window closed successfully.")


async def _named(held: ActiveLease, body: dict[str, Any]) -> list[Window]:
    """The first window that `window_name` fits, as wmctrl fits it: a part of the title without case, or with `strict` all of it."""
    name = body["window_name"]
    if not isinstance(name, str):
        raise crash()
    for window in await held.desktop.windows():
        text = window.wm_class if body.get("by_class", False) else window.title
        if text == name if body.get("strict", False) else name.lower() in text.lower():
            return [window]
    return []
