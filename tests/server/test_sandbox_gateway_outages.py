"""A gateway whose bridges fail: what is only away for a moment ends no sandbox, and what will never work is said."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from fake_pool import Painted
from patience import limit
from server_client import OWNER_KEY, bearer, painted_server, serve_gateway, upstream, wait_until
from test_sandbox_gateway import TOKEN, create, gateway, gateway_client

from deskhand.desktop.base import CommandResult
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.errors import InfrastructureError

ROOT = Path(__file__).parents[2]


class Answering(httpx2.AsyncHTTPTransport):
    """Answers with `status` in the bridge's stead what ends in `path`; with a page, as a proxy does, if `is_page`."""

    path, status, is_page = "", 0, False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.path and request.url.path.endswith(self.path):
            if self.is_page:
                return httpx2.Response(self.status, html="<html>proxy</html>", request=request)
            return httpx2.Response(self.status, json={"error": "as the test wants"}, request=request)
        return await super().handle_async_request(request)


async def test_a_server_outage_deletes_no_sandbox():
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


async def test_a_restarted_server_has_lost_its_sandboxes():
    bridge = Answering()
    async with gateway(1, transport=bridge) as (address, server, _), httpx2.AsyncClient(base_url=address) as http:
        http.headers.update(bearer(TOKEN))
        made = (await http.post("/v1/sandboxes", json={})).json()
        bridge.path, bridge.status = "/desktop/run", 401
        reply = await http.post(f"/v1/sandboxes/{made['id']}/exec", json={"argv": ["id"], "timeout_s": 1})
        assert (reply.status_code, server._sandboxes) == (410, {})
        assert "key" not in reply.text


async def test_a_page_of_a_proxy_before_the_server_neither_deletes_renews_nor_grants():
    bridge = Answering()
    async with gateway(2, transport=bridge) as (address, server, _), httpx2.AsyncClient(base_url=address) as http:
        http.headers.update(bearer(TOKEN))
        made = (await http.post("/v1/sandboxes", json={})).json()
        one = f"/v1/sandboxes/{made['id']}"
        bridge.path, bridge.is_page = "/renew", True
        for bridge.status in (200, 401, 410, 500):
            assert (await http.post(f"{one}/renew")).status_code == 503
        bridge.path = "/desktop/run"
        for bridge.status in (401, 410):
            reply = await http.post(f"{one}/exec", json={"argv": ["id"], "timeout_s": 1})
            assert (reply.status_code, "proxy" in reply.text) == (bridge.status, True), "the client sees what it is"
        assert list(server._sandboxes) == [made["id"]]
        bridge.path = "/leases"
        for bridge.status in (200, 201, 400, 401, 500):
            server.upstreams[0].unreachable_until = 0.0
            refused = await http.post("/v1/sandboxes", json={})
            assert (refused.status_code, "retry-after" in refused.headers) == (429, True), bridge.status
        bridge.path = ""
        server.upstreams[0].unreachable_until = 0.0
        assert (await http.post("/v1/sandboxes", json={})).status_code == 201


async def test_a_gateway_with_a_wrong_key_fails_at_once_instead_of_waiting():
    quota = QuotaManager()
    async with (
        painted_server() as (running, _),
        serve_gateway([upstream(running, "another-key-of-the-tests")], {TOKEN: None}) as (address, _),
        gateway_client(address, quota=quota) as client,
    ):
        async with asyncio.timeout(limit(10)):
            with pytest.raises(InfrastructureError, match="rejected the gateway"):
                await create(client)
        assert quota.total_s == 0


async def test_a_request_in_progress_keeps_a_sandbox():
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


async def test_large_files_pass_and_invalid_paths_are_rejected():
    async with gateway(1) as (address, _, made), httpx2.AsyncClient(base_url=address, timeout=limit(30)) as http:
        http.headers.update(bearer(TOKEN))
        one = f"/v1/sandboxes/{(await http.post('/v1/sandboxes', json={})).json()['id']}"
        assert (await http.put(f"{one}/files?path=a", content=bytes(12 << 20))).status_code == 200
        assert len(made[0].files["a"]) == 12 << 20
        assert (await http.get(f"{one}/ports/5000/a%01b")).status_code == 400


async def test_sigterm_deletes_the_sandboxes_of_a_gateway(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    async with painted_server() as (running, _):
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
            await wait_until(lambda: not list(running.leases))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
