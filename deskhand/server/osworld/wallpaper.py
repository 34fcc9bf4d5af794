"""The wallpaper: `/wallpaper` and `/setup/change_wallpaper`. Invariant: which picture it is, GNOME's setting in the guest says.

An embedded desktop paints no picture; the setting is kept, read and judged all the same.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from deskhand.server.active_leases import ActiveLease
from deskhand.server.http_errors import HtmlErrorPage
from deskhand.server.osworld.request import crash, json_of

_SETTING = ["org.gnome.desktop.background", "picture-uri"]
_SET_S = 20.0


async def wallpaper(held: ActiveLease, request: Request) -> Response:
    """`POST /wallpaper`: the bytes of the picture that is set; 404 where none is, 500 for one that cannot be read."""
    try:
        done = await held.guest.run(["gsettings", "get", *_SETTING], timeout_s=_SET_S)
    except OSError:
        raise HtmlErrorPage(500, "gsettings is not installed in the guest") from None
    path = done.output.strip().replace("file://", "").replace("'", "") if done.returncode == 0 else ""
    if not path:
        raise HtmlErrorPage(404, "Wallpaper file not found")
    try:
        data = await held.guest.read(path)
    except OSError:
        raise HtmlErrorPage(500, "Unable to serve the wallpaper file") from None
    return Response(data, media_type="image/png")


async def change_wallpaper(held: ActiveLease, request: Request) -> Response:
    """`POST /setup/change_wallpaper`."""
    path = (await json_of(request)).get("path")
    if not path:
        return HTMLResponse("Path not supplied!", status_code=400)
    if not isinstance(path, str):
        raise crash()
    at = await held.guest.expand(path)
    if not await held.guest.test("e", at):
        return HTMLResponse(f"File not found: {at}", status_code=404)
    try:
        done = await held.guest.run(["gsettings", "set", *_SETTING, f"file://{at}"], timeout_s=_SET_S)
    except OSError as error:
        return HTMLResponse(f"Failed to change wallpaper. Error: {error}", status_code=500)
    if done.returncode != 0:
        return HTMLResponse(f"Failed to change wallpaper. Error: {done.error.strip()}", status_code=500)
    return HTMLResponse("Wallpaper changed successfully")
