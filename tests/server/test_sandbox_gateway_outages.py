"""A gateway whose bridges fail: what is only away for a moment ends no sandbox, and what will never work is said."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from fake_pool import Painted, painted_pool
from patience import limit
from server_client import OWNER_KEY, bearer
from serving import on_a_port
from test_sandbox_gateway import QUICK, TOKEN, gateway

from deskhand.desktop.base import CommandResult
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.sandbox_api import HttpSandboxApi
from deskhand.errors import InfrastructureError
from deskhand.server.process import ServerConfig, serve_pool
from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer

ROOT = Path(__file__).parents[2]


class Answering(httpx2.AsyncHTTPTransport):
    """Answers with `status` in the bridge's stead what ends in `path`."""

    path, status = "", 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.path and request.url.path.endswith(self.path):
            return httpx2.Response(self.status, json={"error": "as the test wants"}, request=request)
        return await super().handle_async_request(request)


async def test_a_bridge_that_is_busy_for_a_moment_ends_no_sandbox():
    bridge = Answering()
    async with gateway(2, transport=bridge) as (address, server, _), httpx2.AsyncClient(base_url=address) as http:
        http.headers.update(bearer(TOKEN))
        made = (await http.post("/v1/sandboxes", json={})).json()
        one = f"/v1/sandboxes/{made['id']}"
        bridge.path = "/renew"
        for bridge.status in (500, 503, 429):
            assert (await http.post(f"{one}/renew")).status_code == 503
        assert list(server._sandboxes) == [made["id"]]
        bridge.status = 410
        assert (await http.post(f"{one}/renew")).status_code == 410
        assert server._sandboxes == {}


async def test_a_bridge_that_was_started_anew_has_ended_its_sandboxes():
    bridge = Answering()
    async with gateway(1, transport=bridge) as (address, server, _), httpx2.AsyncClient(base_url=address) as http:
        http.headers.update(bearer(TOKEN))
        made = (await http.post("/v1/sandboxes", json={})).json()
        bridge.path, bridge.status = "/desktop/run", 401
        reply = await http.post(f"/v1/sandboxes/{made['id']}/exec", json={"argv": ["id"], "timeout_s": 1})
        assert (reply.status_code, server._sandboxes) == (410, {})
        assert "key" not in reply.text


async def test_a_gateway_with_a_wrong_key_says_so_and_lets_nobody_wait():
    async with painted_pool(1, []) as pool, serve_pool(pool, ServerConfig(port=0, admin_key=OWNER_KEY)) as running:
        server = SandboxGatewayServer(
            [UpstreamServer(f"http://127.0.0.1:{running.port}", "another-key-of-the-tests")], {TOKEN: None}
        )
        async with on_a_port(server.app()) as address:  # type: ignore[arg-type]
            lot = QuotaManager()
            client = HttpSandboxApi(address, TOKEN, timeouts=QUICK, quota=lot)
            async with asyncio.timeout(limit(10)):
                with pytest.raises(InfrastructureError, match="rejected the gateway"):
                    await client.create(image=None, width=64, height=48, ttl_s=60, request_id="a")
            assert lot.total_s == 0
            await client.close()
        await server.close()


async def test_a_sandbox_that_is_being_asked_something_is_not_ended_for_its_silence():
    now, going, asked = [0.0], asyncio.Event(), asyncio.Event()

    class Busy(Painted):
        async def run(self, argv, **named) -> CommandResult:
            asked.set()
            await going.wait()
            return await super().run(argv, **named)

    async with (
        gateway(1, clock=lambda: now[0]) as (address, server, made),
        httpx2.AsyncClient(base_url=address) as http,
    ):
        http.headers.update(bearer(TOKEN))
        one = f"/v1/sandboxes/{(await http.post('/v1/sandboxes', json={'ttl_s': 10})).json()['id']}"
        made[0].__class__ = Busy
        running = asyncio.create_task(http.post(f"{one}/exec", json={"argv": ["sleep"], "timeout_s": 100}))
        async with asyncio.timeout(limit(10)):
            await asked.wait()
        now[0] = 60.0
        await server.expire()
        going.set()
        assert (await running).status_code == 200
        now[0] = 69.0
        await server.expire()
        assert len(server._sandboxes) == 1, "its time begins at the answer"
        now[0] = 71.0
        await server.expire()
        assert server._sandboxes == {}


async def test_a_file_may_be_as_large_as_a_desktop_takes_one_and_a_path_is_an_address():
    async with gateway(1) as (address, _, made), httpx2.AsyncClient(base_url=address, timeout=limit(30)) as http:
        http.headers.update(bearer(TOKEN))
        one = f"/v1/sandboxes/{(await http.post('/v1/sandboxes', json={})).json()['id']}"
        assert (await http.put(f"{one}/files?path=a", content=bytes(12 << 20))).status_code == 200
        assert len(made[0].files["a"]) == 12 << 20
        assert (await http.get(f"{one}/ports/5000/a%01b")).status_code == 400


async def test_a_gateway_that_is_told_to_end_ends_its_sandboxes(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    async with painted_pool(1, []) as pool, serve_pool(pool, ServerConfig(port=0, admin_key=OWNER_KEY)) as running:
        words = [f"http://127.0.0.1:{running.port}", "--tokens-file", str(tokens), "--port", "0"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "deskhand", "serve", "sandboxes", *words, cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT), "DESKHAND_SERVER_API_KEY": OWNER_KEY},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            async with asyncio.timeout(limit(60)):
                line = (await process.stdout.readline()).decode()
            assert line.startswith("sandbox gateway at http://127.0.0.1:"), line
            async with httpx2.AsyncClient(base_url=line.split()[3].rstrip(",")) as http:
                assert (await http.post("/v1/sandboxes", json={}, headers=bearer(TOKEN))).status_code == 201
            assert len(list(running.leases)) == 1
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(limit(30)):
                assert await process.wait() == 130
            deadline = time.monotonic() + limit(10)
            while list(running.leases):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
