"""A film of a desktop. Invariant: it is made of settled screens as the host sees them; the guest runs nothing for it, and a film is
bounded in time and size.
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
BETWEEN_S = 0.5
LONGEST_S = 3600.0
LARGEST_BYTES = 512 << 20
QUALITY = 85


class ScreenRecording:
    """Looks at `desktop` twice a second, from its making on until `film`."""

    def __init__(self, desktop: StageableDesktop) -> None:
        self._desktop = desktop
        self._began = time.monotonic()
        self._pictures: list[VideoFrame] = []
        self._size = (0, 0)
        self._bytes = 0
        self._last = ""
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._looking = asyncio.Lock()

    async def begin(self) -> None:
        """Take the first picture, and go on in the background unless it was ended meanwhile. Raises what `observe` raises."""
        await self._look()
        if not self._over:
            self._task = asyncio.create_task(self._go_on())

    async def _look(self) -> None:
        async with self._looking:
            frame = await self._desktop.observe()
            if frame.content_hash == self._last:
                return
            at_s = time.monotonic() - self._began if self._pictures else 0.0
            jpeg = await asyncio.to_thread(_jpeg, frame)
            self._last, self._size = frame.content_hash, frame.size
            self._pictures.append(VideoFrame(at_s, jpeg))
            self._bytes += len(jpeg)

    async def _go_on(self) -> None:
        try:
            while time.monotonic() - self._began < LONGEST_S and self._bytes < LARGEST_BYTES:
                await asyncio.sleep(BETWEEN_S)
                await self._look()
        except DeskhandError as error:
            log.info("bridge.recording_ended", error=str(error))

    async def to_mp4(self) -> bytes:
        """End it; the film as MP4. Raises what `observe` raises when it was ended before its first picture."""
        self.stop()
        if not self._pictures:
            await self._look()
        end_s = time.monotonic() - self._began
        return await asyncio.to_thread(encode_mp4, self._pictures, end_s, *self._size)

    def stop(self) -> None:
        """End it without a film. Idempotent."""
        self._over = True
        if self._task is not None:
            self._task.cancel()
            self._task = None


def _jpeg(frame: Frame) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame.rgb()).save(buffer, format="JPEG", quality=QUALITY)
    return buffer.getvalue()
