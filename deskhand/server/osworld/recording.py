"""OSWorld routes for screen recording: `/start_recording` and `/end_recording`. One recording per desktop."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deskhand.server.active_leases import ActiveLease
from deskhand.server.osworld.files import attachment
from deskhand.server.screen_recording import ScreenRecording


async def start_recording(lease: ActiveLease, request: Request) -> Response:
    """`POST /start_recording`."""
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
