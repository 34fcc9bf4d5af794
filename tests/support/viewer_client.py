"""Requests to the viewer's application, without a socket."""

from __future__ import annotations

from typing import Any

import httpx2

from deskhand.reporting.viewer.app import create_app
from deskhand.store.run import Run

TOKEN = "the-token"
KEY = {"Authorization": f"Bearer {TOKEN}"}


def client_of(*runs: Run, base_url: str = "http://127.0.0.1:8000", headers: dict[str, str] = KEY) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(create_app(runs, TOKEN))
    return httpx2.AsyncClient(transport=transport, base_url=base_url, headers=headers)


async def get(client: httpx2.AsyncClient, path: str, **parameters: Any) -> Any:
    reply = await client.get(f"/api{path}", params={key: str(value) for key, value in parameters.items()})
    assert reply.status_code == 200, reply.text
    return reply.json()
