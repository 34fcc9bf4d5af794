"""Idempotency cache: the frames of recent actions by action id.

Used by `LocalDesktop` for repeated calls. All frames but the newest are stored compressed.

Invariant: an id is stored until `limit` other actions have started.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
import zstandard

from deskhand.desktop.base import Frame
from deskhand.errors import DeliveryUnknown


@dataclass(frozen=True)
class _CompressedFrame:
    """A frame without pixels, and its compressed pixels."""

    frame: Frame
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, frame: Frame) -> _CompressedFrame:
        packed = zstandard.ZstdCompressor(level=1).compress(np.ascontiguousarray(frame.bgrx).data)
        data = bytes(memoryview(packed))  # `packed` holds a worst-case buffer
        return cls(replace(frame, bgrx=np.empty((0, 0, 4), np.uint8)), frame.bgrx.shape, data)

    def decompressed(self) -> Frame:
        pixels = np.frombuffer(zstandard.ZstdDecompressor().decompress(self.data), np.uint8)
        return replace(self.frame, bgrx=pixels.reshape(self.shape))


class IdempotencyCache:
    """Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._actions: OrderedDict[str, Frame | _CompressedFrame | None] = OrderedDict()
        self._newest = ""

    def get(self, action_id: str) -> Frame | None:
        """Return the frame of a finished action, None for a new id. Raises `DeliveryUnknown` if it did not finish."""
        if action_id not in self._actions:
            return None
        found = self._actions[action_id]
        if found is None:
            raise DeliveryUnknown(f"action {action_id} failed before; it may or may not have been performed")
        return found if isinstance(found, Frame) else found.decompressed()

    def begin(self, action_id: str) -> None:
        """Register the id of an action."""
        self._actions[action_id] = None
        while len(self._actions) > self._limit:
            self._actions.popitem(last=False)

    def finish(self, action_id: str, frame: Frame) -> None:
        """Store the frame of an action."""
        newest = self._actions.get(self._newest)
        if isinstance(newest, Frame):
            self._actions[self._newest] = _CompressedFrame.of(newest)
        self._actions[action_id], self._newest = frame, action_id

    def forget(self, action_id: str) -> None:
        """Remove an action that was certainly not performed, so that it may be sent again."""
        self._actions.pop(action_id, None)

    def clear(self) -> None:
        self._actions.clear()
