"""OSWorld routes for the screen: screenshots, sizes, pointer, accessibility tree, terminal text, recording, wallpaper.

Pixels, sizes and the pointer come from the X server. The accessibility tree, terminal text and wallpaper come from the
guest; local desktops do not paint the wallpaper.
"""

from __future__ import annotations

import asyncio
from xml.etree import ElementTree

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from deskhand.server.active_leases import ActiveLease
from deskhand.server.guest import GuestCommandResult
from deskhand.server.http_errors import HtmlErrorPage
from deskhand.server.osworld.files import attachment
from deskhand.server.osworld.request import crash, form_of, json_of
from deskhand.server.screen_recording import ScreenRecording

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
    width, height = lease.size
    return JSONResponse({"width": width, "height": height})


async def window_size(lease: ActiveLease, request: Request) -> Response:
    """`POST /window_size`: size of the first window with this WM_CLASS; 500 without one, as in the original."""
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


async def start_recording(lease: ActiveLease, request: Request) -> Response:
    if lease.recording is not None:
        return JSONResponse({"status": "error", "message": "Recording is already in progress."}, status_code=400)
    recording = lease.recording = ScreenRecording(lease.desktop)
    try:
        await recording.start()
    except BaseException:
        lease.recording = None
        raise
    return JSONResponse({"status": "success", "message": "Started recording successfully."})


async def end_recording(lease: ActiveLease, request: Request) -> Response:
    """`POST /end_recording`: return the recording as MP4."""
    recording, lease.recording = lease.recording, None
    if recording is None:
        return JSONResponse({"status": "error", "message": "No recording in progress to stop."}, status_code=400)
    return attachment(await recording.to_mp4(), "osworld_recording.mp4")


async def _gsettings(lease: ActiveLease, verb: str, *value: str) -> GuestCommandResult:
    argv = ["gsettings", verb, "org.gnome.desktop.background", "picture-uri", *value]
    return await lease.guest.run(argv, timeout_s=20.0)


async def wallpaper(lease: ActiveLease, request: Request) -> Response:
    """`POST /wallpaper`: return the image file; 404 if none is set, 500 if it cannot be read."""
    try:
        done = await _gsettings(lease, "get")
    except OSError:
        raise HtmlErrorPage(500, "gsettings is not installed in the guest") from None
    path = done.output.strip().replace("file://", "").replace("'", "") if done.returncode == 0 else ""
    if not path:
        raise HtmlErrorPage(404, "Wallpaper file not found")
    try:
        data = await lease.guest.read(path)
    except OSError:
        raise HtmlErrorPage(500, "Unable to serve the wallpaper file") from None
    return Response(data, media_type="image/png")


async def change_wallpaper(lease: ActiveLease, request: Request) -> Response:
    path = (await json_of(request)).get("path")
    if not path:
        return HTMLResponse("Path not supplied!", status_code=400)
    if not isinstance(path, str):
        raise crash()
    at = await lease.guest.expand(path)
    if not await lease.guest.test("e", at):
        return HTMLResponse(f"File not found: {at}", status_code=404)
    try:
        done = await _gsettings(lease, "set", f"file://{at}")
    except OSError as error:
        return HTMLResponse(f"Failed to change wallpaper. Error: {error}", status_code=500)
    if done.returncode != 0:
        return HTMLResponse(f"Failed to change wallpaper. Error: {done.error.strip()}", status_code=500)
    return HTMLResponse("Wallpaper changed successfully")
