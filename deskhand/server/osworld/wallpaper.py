"""OSWorld routes for the wallpaper: `/wallpaper` and `/setup/change_wallpaper`.

They read and write GNOME's setting in the guest. Local desktops do not paint the image.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from deskhand.server.active_leases import ActiveLease
from deskhand.server.http_errors import HtmlErrorPage
from deskhand.server.osworld.request import crash, json_of

_GSETTINGS_KEY = ["org.gnome.desktop.background", "picture-uri"]
_TIMEOUT_S = 20.0


async def wallpaper(lease: ActiveLease, request: Request) -> Response:
    """`POST /wallpaper`: return the image file; 404 if none is set, 500 if it cannot be read."""
    try:
        done = await lease.guest.run(["gsettings", "get", *_GSETTINGS_KEY], timeout_s=_TIMEOUT_S)
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
    """`POST /setup/change_wallpaper`."""
    path = (await json_of(request)).get("path")
    if not path:
        return HTMLResponse("Path not supplied!", status_code=400)
    if not isinstance(path, str):
        raise crash()
    at = await lease.guest.expand(path)
    if not await lease.guest.test("e", at):
        return HTMLResponse(f"File not found: {at}", status_code=404)
    try:
        done = await lease.guest.run(["gsettings", "set", *_GSETTINGS_KEY, f"file://{at}"], timeout_s=_TIMEOUT_S)
    except OSError as error:
        return HTMLResponse(f"Failed to change wallpaper. Error: {error}", status_code=500)
    if done.returncode != 0:
        return HTMLResponse(f"Failed to change wallpaper. Error: {done.error.strip()}", status_code=500)
    return HTMLResponse("Wallpaper changed successfully")
