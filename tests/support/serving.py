"""Applications served on a loopback port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette


@asynccontextmanager
async def on_a_port(app: Starlette) -> AsyncIterator[str]:
    """The address of `app` while it is served."""
    with socket.socket(
        proto=socket.IPPROTO_TCP
    ) as listener:  # asyncio then sends at once, without waiting for acknowledgements
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
