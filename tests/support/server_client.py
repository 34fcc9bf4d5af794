"""A bridge in this process on ports of its own, with small embedded desktops behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from patience import limit

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.pool import DesktopPool
from deskhand.server.process import RunningServer, ServerConfig, serve_pool

OWNER_KEY = "the-owner's-key-of-the-tests"
SCREEN = DesktopSpec("plain", 320, 240)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@dataclass
class Client:
    """A lease of the bridge and a client that shows its key; `osworld` is the root of its in-VM server."""

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
        held = self.running.book.find(self.lease["lease"])
        assert held is not None
        return held.desktop


@asynccontextmanager
async def bridge(
    size: int = 1, *, spares: int = 0, key: str | None = OWNER_KEY, **settings: Any
) -> AsyncIterator[RunningServer]:
    async with (
        DesktopPool(size, SCREEN, spares=spares, make=lambda: LocalDesktop(crashes_fail=False)) as pool,
        serve_pool(pool, ServerConfig(port=0, owner_key=key, **settings)) as running,
    ):
        yield running


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
