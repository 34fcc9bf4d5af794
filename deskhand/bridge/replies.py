"""What was answered to requests that acted. Invariant: a request is carried out once, however often it is sent; and what is kept of
answers is bounded, so that a guest's long outputs do not fill the bridge's memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from starlette.responses import JSONResponse, Response

REMEMBERED = 64
MOST_BYTES = 64 << 20
"""Of answers of one lease. Beyond it the oldest are forgotten; that they were given is not."""


class Replies:
    """The last answers of a lease, by the ids of the requests."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, asyncio.Future[Response]] = OrderedDict()

    async def once(self, request_id: str | None, act: Callable[[], Awaitable[Response]]) -> Response:
        """The answer of `act`, which is begun once for an id; whoever asks again meanwhile waits for it. A refusal for want of room
        (429, 503) is not remembered: nothing was carried out."""
        if not request_id:
            return await act()
        known = self._known.get(request_id)
        if known is None:
            known = self._known[request_id] = asyncio.ensure_future(act())
            known.add_done_callback(lambda done: self._settled(request_id, done))
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return await asyncio.shield(known)

    def _settled(self, request_id: str, done: asyncio.Future[Response]) -> None:
        failed = not _answered(done)
        if (failed or done.result().status_code in (429, 503)) and self._known.get(request_id) is done:
            del self._known[request_id]
        others = [(name, each.result()) for name, each in self._known.items() if each is not done and _answered(each)]
        size = sum(len(reply.body) for _, reply in others) + (0 if failed else len(done.result().body))
        for name, reply in others:
            if size <= MOST_BYTES:
                return
            size -= len(reply.body)
            self._known[name] = _forgotten(done.get_loop())


def _answered(reply: asyncio.Future[Response]) -> bool:
    return reply.done() and not reply.cancelled() and reply.exception() is None


def _forgotten(loop: asyncio.AbstractEventLoop) -> asyncio.Future[Response]:
    reply: asyncio.Future[Response] = loop.create_future()
    message = "this request was carried out before, and its answer is no longer kept"
    reply.set_result(JSONResponse({"error": "unknown", "message": message}, status_code=500))
    return reply
