"""The door of a machine that is not always there: requests pass through it to a server, but for those that it refuses
or loses.

Faults come by the number of the request, so that a run meets them wherever it happens to be: 429 before the request is
passed on, 502 before and after, and once, for a second, nothing but connections that are cut.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx2
from patience import limit
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

OUTAGE_S = 1.0
METHODS = ["GET", "POST", "PUT", "DELETE"]


class Door:
    """`app` is to be served; what comes in goes to `upstream`, below `prefix()`. The outage begins with request
    `outage_at`, 0 for none. `seen` counts what became of requests. `POST /revert` calls `revert`, where there is
    one."""

    def __init__(
        self,
        upstream: httpx2.AsyncClient,
        prefix: Callable[[], str] = str,
        *,
        outage_at: int = 0,
        revert: Callable[[], Any] | None = None,
    ) -> None:
        self._upstream, self._prefix, self._revert = upstream, prefix, revert
        self._numbers = itertools.count(1)
        self._outage_at, self._outage_ends = outage_at, 0.0
        self.seen: Counter[str] = Counter()
        routes = [Route("/{path:path}", self.passed, methods=METHODS)]
        if revert is not None:
            routes.insert(0, Route("/revert", self.reverted, methods=["POST"]))
        self.app = Starlette(routes=routes)

    async def reverted(self, request: Request) -> Response:
        assert self._revert is not None
        await self._revert()
        self.seen["reverted"] += 1
        return Response()

    async def passed(self, request: Request) -> Response:
        body = await request.body()
        number = next(self._numbers)
        if number == self._outage_at:
            self._outage_ends = time.monotonic() + OUTAGE_S
        if time.monotonic() < self._outage_ends:
            self.seen["cut"] += 1
            return Cut()
        if number % 23 == 0:
            self.seen["429"] += 1
            return Response(status_code=429, headers={"retry-after": "0"})
        if number % 31 == 0:
            self.seen["502 before"] += 1
            return Response(status_code=502)
        headers = {name: value for name, value in request.headers.items() if name == "content-type"}
        path, query = f"{self._prefix()}{request.url.path}", dict(request.query_params)
        reply = await self._upstream.request(
            request.method, path, params=query, content=body, headers=headers, timeout=limit(120)
        )
        if number % 29 == 0:
            self.seen["502 after"] += 1
            return Response(status_code=502)
        self.seen["passed"] += 1
        return Response(
            reply.content, reply.status_code, {"content-type": reply.headers.get("content-type", "text/plain")}
        )


class Cut(Response):
    """A connection that ends in the middle of the reply."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
        await asyncio.sleep(0.05)
        raise ConnectionAbortedError("the server is away")
