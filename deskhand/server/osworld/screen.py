"""What is on the screen: `/screenshot`, `/accessibility`, `/terminal`, `/screen_size`, `/window_size`, `/cursor_position`.

Invariant: pixels, sizes and the pointer come from the X server; only the accessibility tree and the terminal's text are the guest's
word.
"""

from __future__ import annotations

import asyncio
from xml.etree import ElementTree

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from deskhand.server.active_leases import ActiveLease
from deskhand.server.osworld.request import crash, form_of

_STATE = "{https://accessibility.ubuntu.example.org/ns/state}"


async def screenshot(held: ActiveLease, request: Request) -> Response:
    """`GET /screenshot`: the settled screen with the pointer in it, as PNG."""
    frame = await held.desktop.observe()
    return Response(await asyncio.to_thread(frame.png), media_type="image/png")


async def accessibility(held: ActiveLease, request: Request) -> Response:
    """`GET /accessibility`: `AT` is null where the desktop has no tree."""
    return JSONResponse({"AT": await held.desktop.accessibility_tree()})


async def terminal(held: ActiveLease, request: Request) -> Response:
    """`GET /terminal`: the text of the focused terminal of the active window, or null."""
    try:
        tree = await held.desktop.accessibility_tree()
        return JSONResponse({"output": terminal_text(tree), "status": "success"})
    except ElementTree.ParseError as error:
        return JSONResponse({"status": "error", "message": str(error)}, status_code=500)


def terminal_text(tree: str | None) -> str | None:
    """The text of the one terminal of an accessibility tree that is focused in an active frame. Raises `ParseError`."""
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


async def screen_size(held: ActiveLease, request: Request) -> Response:
    """`POST /screen_size`."""
    width, height = held.size
    return JSONResponse({"width": width, "height": height})


async def window_size(held: ActiveLease, request: Request) -> Response:
    """`POST /window_size`: of the first window whose WM_CLASS has the name; 500 where there is none, as the original crashes."""
    wanted = (await form_of(request)).get("app_class_name")
    if not isinstance(wanted, str):
        return JSONResponse({"error": "app_class_name is required"}, status_code=400)
    for window in await held.desktop.windows():
        if wanted.lower() in window.wm_class.lower().split("."):
            return JSONResponse({"width": window.width, "height": window.height})
    raise crash()


async def cursor_position(held: ActiveLease, request: Request) -> Response:
    """`GET /cursor_position`: [x, y] in pixels."""
    return JSONResponse(list((await held.desktop.observe()).cursor))


async def platform(held: ActiveLease, request: Request) -> Response:
    """`GET /platform`: embedded desktops are Linux."""
    return HTMLResponse("Linux")
