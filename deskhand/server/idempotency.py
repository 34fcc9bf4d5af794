"""What was answered to requests that acted. Invariant: a request is carried out once, however often it is sent; and what is kept of
answers is bounded, so that a guest's long outputs do not fill the bridge's memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from starlette.responses import JSONResponse, Response

REMEMBERED = 64
"""Answers that are kept; what is still being carried out is never forgotten."""
MOST_BYTES = 64 << 20
"""Of answers. Beyond it the oldest are forgotten; that they were given is not."""
KNOWN = 4096
"""Ids of requests that were carried out and whose answers are forgotten."""


class ReplyCache:
    """The last answers, by the ids of the requests."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[Response]] = {}
        self._answers: OrderedDict[str, Response] = OrderedDict()
        self._bytes = 0
        self._forgotten: OrderedDict[str, None] = OrderedDict()

    async def run_once(self, request_id: str | None, act: Callable[[], Awaitable[Response]]) -> Response:
        """The answer of `act`, which is begun once for an id; whoever asks again meanwhile waits for it. A refusal for want of room
        (429, 503) is not remembered: nothing was carried out."""
        if not request_id:
            return await act()
        if request_id in self._answers:
            return self._answers[request_id]
        if request_id in self._forgotten:
            message = "this request was carried out before, and its answer is no longer kept"
            return JSONResponse({"error": "unknown", "message": message}, status_code=500)
        running = self._under_way.get(request_id)
        if running is None:
            running = self._under_way[request_id] = asyncio.ensure_future(act())
            running.add_done_callback(lambda done: self._settled(request_id, done))
        return await asyncio.shield(running)

    def _settled(self, request_id: str, done: asyncio.Future[Response]) -> None:
        del self._under_way[request_id]
        if done.cancelled() or done.exception() is not None or done.result().status_code in (429, 503):
            return
        self._answers[request_id] = done.result()
        self._bytes += len(done.result().body)
        while len(self._answers) > REMEMBERED or (self._bytes > MOST_BYTES and len(self._answers) > 1):
            oldest, answer = self._answers.popitem(last=False)
            self._bytes -= len(answer.body)
            self._forgotten[oldest] = None
        while len(self._forgotten) > KNOWN:
            self._forgotten.popitem(last=False)
