"""OSWorld routes for the screen: `/screenshot`, `/accessibility`, `/terminal`, `/screen_size`, `/window_size`,
`/cursor_position`.

Pixels, sizes and the pointer come from the X server. Only the accessibility tree and terminal text come from the
guest.
"""

from __future__ import annotations

import asyncio
from xml.etree import ElementTree

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from deskhand.server.active_leases import ActiveLease
from deskhand.server.osworld.request import crash, form_of

_STATE = "{https://accessibility.ubuntu.example.org/ns/state}"


async def screenshot(lease: ActiveLease, request: Request) -> Response:
    """`GET /screenshot`: return the settled screen with the pointer as PNG."""
    frame = await lease.desktop.observe()
    return Response(await asyncio.to_thread(frame.png), media_type="image/png")


async def accessibility(lease: ActiveLease, request: Request) -> Response:
    """`GET /accessibility`: return the tree; `AT` is null if there is none."""
    return JSONResponse({"AT": await lease.desktop.accessibility_tree()})


async def terminal(lease: ActiveLease, request: Request) -> Response:
    """`GET /terminal`: return the text of the focused terminal in the active window, or null."""
    try:
        tree = await lease.desktop.accessibility_tree()
        return JSONResponse({"output": terminal_text(tree), "status": "success"})
    except ElementTree.ParseError as error:
        return JSONResponse({"status": "error", "message": str(error)}, status_code=500)


def terminal_text(tree: str | None) -> str | None:
    """Return the text of the single focused terminal in an active frame of the tree. Raises `ParseError`."""
    if not tree:
        return None
    found = [
        node
        for frame in ElementTree.fromstring(tree).iter("frame")
        if frame.get(f"{_STATE}active") == "true"
        for node in frame.iter("terminal")
        if node.get(f"{_STATE}focused") == "true"
    ]
    return (found[0].text or "").rstrip() if len(found) == 1 else None


async def screen_size(lease: ActiveLease, request: Request) -> Response:
    """`POST /screen_size`."""
    width, height = lease.size
    return JSONResponse({"width": width, "height": height})


async def window_size(lease: ActiveLease, request: Request) -> Response:
    """`POST /window_size`: return the size of the first window with this WM_CLASS; 500 without one, as the original
    crashes."""
    wanted = (await form_of(request)).get("app_class_name")
    if not isinstance(wanted, str):
        return JSONResponse({"error": "app_class_name is required"}, status_code=400)
    for window in await lease.desktop.windows():
        if wanted.lower() in window.wm_class.lower().split("."):
            return JSONResponse({"width": window.width, "height": window.height})
    raise crash()


async def cursor_position(lease: ActiveLease, request: Request) -> Response:
    """`GET /cursor_position`: return [x, y] in pixels."""
    return JSONResponse(list((await lease.desktop.observe()).cursor))


async def platform(lease: ActiveLease, request: Request) -> Response:
    """`GET /platform`: local desktops are Linux."""
    return HTMLResponse("Linux")
