"""What the latest actions showed, by their ids. Invariant: an id that was begun is not forgotten before `limit` others were begun
after it, and remembering costs little: every frame but the newest is kept compressed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import zstandard

from deskhand.desktop.base import Frame
from deskhand.errors import DeliveryUnknown


@dataclass(frozen=True)
class _Packed:
    """A frame without its pixels, and these."""

    others: dict[str, Any]
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, frame: Frame) -> _Packed:
        others = {
            field.name: getattr(frame, field.name) for field in fields(frame) if field.init and field.name != "bgrx"
        }
        packed = zstandard.ZstdCompressor(level=1).compress(np.ascontiguousarray(frame.bgrx).data)
        data = bytes(memoryview(packed))  # `packed` keeps the memory that the worst case would have needed
        return cls(others, frame.bgrx.shape, data)

    def frame(self) -> Frame:
        pixels = np.frombuffer(zstandard.ZstdDecompressor().decompress(self.data), np.uint8)
        return Frame(bgrx=pixels.reshape(self.shape), **self.others)


class IdempotencyCache:
    """Used by one thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._actions: OrderedDict[str, Frame | _Packed | None] = OrderedDict()
        self._newest = ""

    def get(self, action_id: str) -> Frame | None:
        """The frame of an action that was finished; None: the id is new. Raises `DeliveryUnknown` for one that was only begun."""
        if action_id not in self._actions:
            return None
        found = self._actions[action_id]
        if found is None:
            raise DeliveryUnknown(f"action {action_id} failed before; it is not known whether it was performed")
        return found if isinstance(found, Frame) else found.frame()

    def begin(self, action_id: str) -> None:
        """From now on the id is known."""
        self._actions[action_id] = None
        while len(self._actions) > self._limit:
            self._actions.popitem(last=False)

    def finish(self, action_id: str, frame: Frame) -> None:
        """The action that was begun showed `frame`."""
        newest = self._actions.get(self._newest)
        if isinstance(newest, Frame):
            self._actions[self._newest] = _Packed.of(newest)
        self._actions[action_id], self._newest = frame, action_id

    def forget(self, action_id: str) -> None:
        """The action that was begun was surely not performed: it may be sent again."""
        self._actions.pop(action_id, None)

    def clear(self) -> None:
        self._actions.clear()
