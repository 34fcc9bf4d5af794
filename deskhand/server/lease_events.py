"""What happens to a lease, as server-sent events. Invariant: a client that comes back with the id of the last event it saw misses
none, or is told how many it missed.

| event       | data                                                          |
|-------------|---------------------------------------------------------------|
| `leased`    | `{"epoch"}`                                                   |
| `reset`     | `{"sequence"}`                                                |
| `performed` | `{"action_id", "sequence", "settled_ms", "settle_reason"}`    |
| `missed`    | `{"events"}`: so many are no longer kept                      |
| `over`      | `{"reason"}`: the last one                                    |
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

KEPT = 256
HEARTBEAT_S = 10.0
STREAMS = 8
"""Clients that listen to one lease at a time."""


class LeaseEvents:
    """The last events of a lease."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, str, str]] = deque(maxlen=KEPT)
        self._next = 1
        self._changed = asyncio.Event()
        self._over = False
        self.streams = 0

    def publish(self, event: str, **data: Any) -> None:
        """Add an event; after `over` there is none."""
        if self._over:
            return
        self._kept.append((self._next, event, json.dumps(data)))
        self._next += 1
        self._over = event == "over"
        self._changed.set()
        self._changed = asyncio.Event()

    async def stream(self, after: int) -> AsyncIterator[str]:
        """Events after the one of number `after` as text of the stream, and a comment now and then that the connection lives."""
        self.streams += 1
        try:
            while True:
                changed = self._changed
                oldest = self._kept[0][0] if self._kept else self._next
                if after + 1 < oldest:
                    yield f"id: {oldest - 1}\nevent: missed\ndata: {json.dumps({'events': oldest - 1 - after})}\n\n"
                    after = oldest - 1
                for number, event, data in [kept for kept in self._kept if kept[0] > after]:
                    yield f"id: {number}\nevent: {event}\ndata: {data}\n\n"
                    after = number
                if self._over:
                    return
                if changed is self._changed:
                    try:
                        async with asyncio.timeout(HEARTBEAT_S):
                            await changed.wait()
                    except TimeoutError:
                        yield ": still here\n\n"
        finally:
            self.streams -= 1
