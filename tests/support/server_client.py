"""Desktop servers and sandbox gateways in this process, each on its own port."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from fake_pool import Painted, painted_pool
from patience import limit
from serving import on_a_port

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.pool import DesktopPool
from deskhand.server.process import RunningServer, ServerConfig, serve_pool
from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer

OWNER_KEY = "the-owner's-key-of-the-tests"
SCREEN = DesktopSpec("plain", 320, 240)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def wait_until(holds: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait until `holds` returns true, at most `seconds` on an idle machine."""
    async with asyncio.timeout(limit(seconds)):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class LossyNetwork(httpx2.AsyncBaseTransport):
    """Loses requests, loses replies after the request was performed, and replies 502 or 504, with these shares."""

    def __init__(self, lose_reply: float = 0.0, lose_request: float = 0.0, gateway_error: float = 0.0) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self.lose_reply, self.lose_request, self.gateway_error = lose_reply, lose_request, gateway_error
        self.random = random.Random(5)
        self.lost = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.random.random() < self.lose_request:
            self.lost += 1
            raise httpx2.ConnectError("lost on its way", request=request)
        reply = await self._inner.handle_async_request(request)
        if self.random.random() < self.lose_reply:
            await reply.aclose()
            self.lost += 1
            raise httpx2.ReadError("the answer was lost", request=request)
        if self.random.random() < self.gateway_error:
            await reply.aclose()
            self.lost += 1
            return httpx2.Response(self.random.choice([502, 504]), request=request)
        return reply

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass
class Client:
    """A lease of a server and a client with its key; `osworld` is the root of its in-VM server."""

    running: RunningServer
    lease: dict[str, Any]
    http: httpx2.AsyncClient

    @property
    def osworld(self) -> str:
        return f"/leases/{self.lease['lease']}/osworld"

    async def post(self, path: str, **arguments: Any) -> httpx2.Response:
        return await self.http.post(self.osworld + path, **arguments)

    async def get(self, path: str, **arguments: Any) -> httpx2.Response:
        return await self.http.get(self.osworld + path, **arguments)

    @property
    def desktop(self) -> Any:
        held = self.running.leases.find(self.lease["lease"])
        assert held is not None
        return held.desktop


@asynccontextmanager
async def bridge(
    size: int = 1, *, spares: int = 0, key: str | None = OWNER_KEY, **settings: Any
) -> AsyncIterator[RunningServer]:
    async with (
        DesktopPool(size, SCREEN, prewarm=spares, make=lambda: LocalDesktop(crashes_fail=False)) as pool,
        serve_pool(pool, ServerConfig(port=0, admin_key=key, **settings)) as running,
    ):
        yield running


@asynccontextmanager
async def painted_server(
    desktops: int = 1, made: list[Painted] | None = None, *, key: str | None = OWNER_KEY, **settings: Any
) -> AsyncIterator[tuple[RunningServer, list[Painted]]]:
    """A server of desktops that are only painted; they are added to `made`."""
    made = [] if made is None else made
    async with (
        painted_pool(desktops, made) as pool,
        serve_pool(pool, ServerConfig(port=0, admin_key=key, **settings)) as running,
    ):
        yield running, made


def upstream(running: RunningServer, key: str = OWNER_KEY) -> UpstreamServer:
    return UpstreamServer(f"http://127.0.0.1:{running.port}", key)


@asynccontextmanager
async def serve_gateway(
    upstreams: list[UpstreamServer], tokens: dict[str, int | None], **settings: Any
) -> AsyncIterator[tuple[str, SandboxGatewayServer]]:
    server = SandboxGatewayServer(upstreams, tokens, **settings)
    async with on_a_port(server.app()) as address:  # type: ignore[arg-type]
        try:
            yield address, server
        finally:
            await server.close()


@asynccontextmanager
async def leased(running: RunningServer, **body: Any) -> AsyncIterator[Client]:
    base = f"http://127.0.0.1:{running.port}"
    async with httpx2.AsyncClient(base_url=base, timeout=limit(60)) as http:
        reply = await http.post("/leases", json=body, headers=bearer(OWNER_KEY))
        assert reply.status_code == 201, reply.text
        lease = reply.json()
        http.headers.update(bearer(lease["key"]))
        yield Client(running, lease, http)
        await http.delete(f"/leases/{lease['lease']}")
