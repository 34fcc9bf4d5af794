"""What was answered to requests that acted. Invariant: a request is carried out once, however often it is sent."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from starlette.responses import Response

REMEMBERED = 64


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
            known.add_done_callback(lambda done: self._forget_refusal(request_id, done))
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return await asyncio.shield(known)

    def _forget_refusal(self, request_id: str, done: asyncio.Future[Response]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if (failed or done.result().status_code in (429, 503)) and self._known.get(request_id) is done:
            del self._known[request_id]
