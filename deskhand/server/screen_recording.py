"""Screen recording of a leased desktop, as MP4.

Used by the OSWorld recording routes. Frames are captured on the host; nothing runs in the guest. Duration and size
are limited.
"""

from __future__ import annotations

import asyncio
import io
import time

import structlog
from PIL import Image

from deskhand.desktop.base import Frame, StageableDesktop
from deskhand.errors import DeskhandError
from deskhand.server.mp4 import VideoFrame, encode_mp4

log = structlog.get_logger()
INTERVAL_S = 0.5
MAX_DURATION_S = 3600.0
MAX_BYTES = 512 << 20
JPEG_QUALITY = 85


class ScreenRecording:
    """Captures `desktop` every `INTERVAL_S` until `to_mp4` or `stop`."""

    def __init__(self, desktop: StageableDesktop) -> None:
        self._desktop = desktop
        self._started_at = time.monotonic()
        self._frames: list[VideoFrame] = []
        self._size = (0, 0)
        self._bytes = 0
        self._last_hash = ""
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._capture_lock = asyncio.Lock()

    async def start(self) -> None:
        """Capture the first frame, then continue in the background. Raises the exceptions of `observe`."""
        await self._capture()
        if not self._stopped:
            self._task = asyncio.create_task(self._capture_periodically())

    async def _capture(self) -> None:
        async with self._capture_lock:
            frame = await self._desktop.observe()
            if frame.content_hash == self._last_hash:
                return
            start_s = time.monotonic() - self._started_at if self._frames else 0.0
            jpeg = await asyncio.to_thread(_jpeg, frame)
            self._last_hash, self._size = frame.content_hash, frame.size
            self._frames.append(VideoFrame(start_s, jpeg))
            self._bytes += len(jpeg)

    async def _capture_periodically(self) -> None:
        try:
            while time.monotonic() - self._started_at < MAX_DURATION_S and self._bytes < MAX_BYTES:
                await asyncio.sleep(INTERVAL_S)
                await self._capture()
        except DeskhandError as error:
            log.info("server.recording_stopped", error=str(error))

    async def to_mp4(self) -> bytes:
        """Stop and return the recording as MP4. Raises the exceptions of `observe` if no frame was captured yet."""
        self.stop()
        if not self._frames:
            await self._capture()
        end_s = time.monotonic() - self._started_at
        return await asyncio.to_thread(encode_mp4, self._frames, end_s, *self._size)

    def stop(self) -> None:
        """Stop without a result. Idempotent."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            self._task = None


def _jpeg(frame: Frame) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame.rgb()).save(buffer, format="JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()
