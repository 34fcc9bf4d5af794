"""Replies to requests by id, so that a repeated request is performed once.

Used per lease by `server.native_api`, and for lease creation. Memory is bounded: guests may produce large outputs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from starlette.responses import JSONResponse, Response

MAX_REPLIES = 64
"""Stored replies; requests in progress are never evicted."""
MAX_BYTES = 64 << 20
"""Total size of stored replies. Older ones are evicted; only their ids are remembered."""
MAX_EVICTED_IDS = 4096
"""Ids of performed requests whose replies were evicted."""


class ReplyCache:
    """Recent replies by request id."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[Response]] = {}
        self._replies: OrderedDict[str, Response] = OrderedDict()
        self._bytes = 0
        self._evicted: OrderedDict[str, None] = OrderedDict()

    async def run_once(self, request_id: str | None, act: Callable[[], Awaitable[Response]]) -> Response:
        """Return the reply of `act`, which runs once per id; concurrent repeats wait for it.

        Quota replies (429, 503) are not stored: the request was not performed.
        """
        if not request_id:
            return await act()
        if request_id in self._replies:
            return self._replies[request_id]
        if request_id in self._evicted:
            message = "this request was already performed and its reply is no longer stored"
            return JSONResponse({"error": "unknown", "message": message}, status_code=500)
        running = self._running.get(request_id)
        if running is None:
            running = self._running[request_id] = asyncio.ensure_future(act())
            running.add_done_callback(lambda done: self._store(request_id, done))
        return await asyncio.shield(running)

    def _store(self, request_id: str, done: asyncio.Future[Response]) -> None:
        del self._running[request_id]
        if done.cancelled() or done.exception() is not None or done.result().status_code in (429, 503):
            return
        self._replies[request_id] = done.result()
        self._bytes += len(done.result().body)
        while len(self._replies) > MAX_REPLIES or (self._bytes > MAX_BYTES and len(self._replies) > 1):
            oldest, reply = self._replies.popitem(last=False)
            self._bytes -= len(reply.body)
            self._evicted[oldest] = None
        while len(self._evicted) > MAX_EVICTED_IDS:
            self._evicted.popitem(last=False)
