"""Server-sent events of a lease, resumable with Last-Event-ID.

| event       | data                                                          |
|-------------|---------------------------------------------------------------|
| `leased`    | `{"epoch"}`                                                   |
| `reset`     | `{"sequence"}`                                                |
| `performed` | `{"action_id", "sequence", "settle_ms", "settle_reason"}`     |
| `gap`       | `{"events"}`: number of events that are no longer stored      |
| `released`  | `{"reason"}`: always the last event                           |
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

MAX_EVENTS = 256
HEARTBEAT_S = 10.0
MAX_STREAMS = 8
"""Concurrent listeners of one lease."""


class LeaseEvents:
    """The most recent events of a lease."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, str, str]] = deque(maxlen=MAX_EVENTS)
        self._next = 1
        self._changed = asyncio.Event()
        self._is_released = False
        self.num_streams = 0

    def publish(self, event: str, **data: Any) -> None:
        """Append an event; ignored after `released`."""
        if self._is_released:
            return
        self._events.append((self._next, event, json.dumps(data)))
        self._next += 1
        self._is_released = event == "released"
        self._changed.set()
        self._changed = asyncio.Event()

    async def stream(self, after: int) -> AsyncIterator[str]:
        """Yield the events after number `after` as SSE text, with comments that keep the connection open."""
        self.num_streams += 1
        try:
            while True:
                changed = self._changed
                oldest = self._events[0][0] if self._events else self._next
                if after + 1 < oldest:
                    yield f"id: {oldest - 1}\nevent: gap\ndata: {json.dumps({'events': oldest - 1 - after})}\n\n"
                    after = oldest - 1
                for number, name, data in [event for event in self._events if event[0] > after]:
                    yield f"id: {number}\nevent: {name}\ndata: {data}\n\n"
                    after = number
                if self._is_released:
                    return
                if changed is self._changed:
                    try:
                        async with asyncio.timeout(HEARTBEAT_S):
                            await changed.wait()
                    except TimeoutError:
                        yield ": heartbeat\n\n"
        finally:
            self.num_streams -= 1
