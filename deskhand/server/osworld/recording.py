"""Recording: `/start_recording` and `/end_recording`. Invariant: a desktop has one film at a time."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deskhand.server.active_leases import ActiveLease
from deskhand.server.osworld.files import attachment
from deskhand.server.screen_recording import ScreenRecording


async def start_recording(held: ActiveLease, request: Request) -> Response:
    """`POST /start_recording`."""
    if held.recording is not None:
        return JSONResponse({"status": "error", "message": "Recording is already in progress."}, status_code=400)
    recording = held.recording = ScreenRecording(held.desktop)
    try:
        await recording.begin()
    except BaseException:
        held.recording = None
        raise
    return JSONResponse({"status": "success", "message": "Started recording successfully."})


async def end_recording(held: ActiveLease, request: Request) -> Response:
    """`POST /end_recording`: the film, as MP4."""
    recording, held.recording = held.recording, None
    if recording is None:
        return JSONResponse({"status": "error", "message": "No recording in progress to stop."}, status_code=400)
    return attachment(await recording.to_mp4(), "osworld_recording.mp4")
