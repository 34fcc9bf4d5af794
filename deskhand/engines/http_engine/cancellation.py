"""Waiting with a deadline or until a server is lost. Used by `http_engine.engine`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from deskhand.engines.http_engine.endpoint import EndpointUnreachable

T = TypeVar("T")


class PausableDeadline:
    """Deadline for waiting; the time between `pause` and `resume` does not count."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._scope = asyncio.timeout(None)
        self._since = 0.0
        self._clock = asyncio.get_running_loop().time

    async def __aenter__(self) -> PausableDeadline:
        await self._scope.__aenter__()
        self.resume()
        return self

    def pause(self) -> None:
        self._left -= self._clock() - self._since
        self._scope.reschedule(None)

    def resume(self) -> None:
        self._since = self._clock()
        self._scope.reschedule(self._since + self._left)

    async def __aexit__(self, *error: Any) -> bool:
        try:
            await self._scope.__aexit__(*error)
        except TimeoutError:
            return True
        return False


async def cancel_on(lost: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or raise `EndpointUnreachable` as soon as the server is lost."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(lost.wait())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise EndpointUnreachable("the server was lost during a request")
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
