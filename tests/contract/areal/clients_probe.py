"""Runs in AReaL's environment, where aiohttp is installed, but outside of AReaL: the shared aiohttp sessions.

`python clients_probe.py OUT_FOLDER` writes found.json.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web  # pyright: ignore[reportMissingImports]

from deskhand.integrations.areal import http_clients, installed_areal


async def answer(request: Any) -> Any:
    return web.Response(text="here")


async def ask(address: str) -> tuple[Any, str]:
    """The session, and what a server says through it."""
    session = await http_clients.aiohttp_session()
    async with session.get(address) as reply:
        return session, await reply.text()


async def visit(sessions: list[Any]) -> dict[str, Any]:
    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    try:
        asked = await asyncio.gather(*(ask(f"http://{host}:{port}/") for _ in range(4)))
        first = asked[0][0]
        await http_clients.close_clients()
        again, said = await ask(f"http://{host}:{port}/")
        found = {
            "kind": type(first) is ClientSession,
            "timeout_s": first.timeout.total,
            "shared": all(session is first for session, _ in asked),
            "said": sorted({text for _, text in asked} | {said}),
            "closed": first.closed,
            "new": again is not first and not again.closed,
        }
        await http_clients.close_clients()
        await http_clients.close_clients()
        sessions.append(again)
        return {**found, "closed_again": again.closed, "left": len(http_clients._clients)}
    finally:
        await runner.cleanup()


def main(out: Path) -> None:
    sessions: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loops = [asyncio.run(visit(sessions)) for _ in range(2)]
        other = sessions[0] is not sessions[1]
        sessions.clear()
        gc.collect()
    unclosed = [str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning)]
    found = {"loops": loops, "other": other, "unclosed": unclosed, "areal": installed_areal.is_running()}
    (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
