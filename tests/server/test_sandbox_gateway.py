"""The gateway: a protocol for sandbox clusters, its client, and the server in front of bridges."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
import yaml
from fake_osworld import FakeOsworld
from fake_pool import Painted
from patience import limit
from server_client import OWNER_KEY, SCREEN, bearer, bridge, painted_server, serve_gateway, upstream, wait_until

from deskhand.actions.ops import Move, Point, Type, screen_px
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.remote import sandbox_api
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.replies import SandboxReply
from deskhand.desktop.remote.sandbox_api import GuestPort, HttpSandboxApi, Sandbox, connect_sandbox_api, endpoint_of
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer, _Sandbox

TOKEN = "the-token-of-the-tests"
QUICK = RemoteTimeouts(connect_s=2, read_s=5, max_attempts=3, initial_backoff_s=0.02)
TEXT = resources.files(sandbox_api.__package__ or "").joinpath("sandbox_api.openapi.yaml").read_text(encoding="utf-8")
OPENAPI: dict[str, Any] = yaml.safe_load(TEXT)


@asynccontextmanager
async def gateway(
    desktops: int = 2, servers: int = 1, **settings: Any
) -> AsyncIterator[tuple[str, SandboxGatewayServer, list[Painted]]]:
    made: list[Painted] = []
    async with AsyncExitStack() as stack:
        running = [(await stack.enter_async_context(painted_server(desktops, made)))[0] for _ in range(servers)]
        tokens = {TOKEN: None, "another-token-of-tests": 1}
        serving = serve_gateway([upstream(each) for each in running], tokens, **settings)
        address, server = await stack.enter_async_context(serving)
        yield address, server, made


@asynccontextmanager
async def gateway_client(address: str, token: str = TOKEN, **settings: Any) -> AsyncIterator[HttpSandboxApi]:
    client = HttpSandboxApi(address, token, timeouts=QUICK, **settings)
    try:
        yield client
    finally:
        await client.close()


async def create(client: HttpSandboxApi, request_id: str = "a", *, width: int = 64, ttl_s: float = 60) -> Sandbox:
    return await client.create(image=None, width=width, height=48, ttl_s=ttl_s, request_id=request_id)


def check(reply: httpx2.Response, path: str, method: str) -> Any:
    """The body, which is as the OpenAPI file says."""
    responses = OPENAPI["paths"][path][method]["responses"]
    assert str(reply.status_code) in responses, f"{method} {path}: {reply.status_code} is not in the file"
    told = responses[str(reply.status_code)]
    if "$ref" in told:
        told = OPENAPI["components"]["responses"][told["$ref"].rpartition("/")[2]]
        needed = [name for name, header in told.get("headers", {}).items() if header["required"]]
        assert all(name in reply.headers for name in needed)
    schema = told.get("content", {}).get("application/json", {}).get("schema")
    if schema is not None:
        jsonschema.validate(reply.json(), schema | {"components": OPENAPI["components"]})
    return reply


async def test_the_server_and_the_openapi_file_say_the_same():
    paths = {
        (route.path.replace(":int", "").replace(":path", ""), method.lower())
        for route in SandboxGatewayServer([UpstreamServer("http://a", None)], {TOKEN: None}).app()._app.routes  # type: ignore[attr-defined]
        for method in route.methods
        if method != "HEAD"
    }
    assert paths == {
        (path, method)
        for path, told in OPENAPI["paths"].items()
        for method in told
        if method in ("get", "post", "put", "delete")
    }
    async with gateway(1) as (address, _, _), httpx2.AsyncClient(base_url=address, headers=bearer(TOKEN)) as http:
        check(await http.get("/v1/health"), "/v1/health", "get")
        made = check(await http.post("/v1/sandboxes", json={"ttl_s": 30}), "/v1/sandboxes", "post").json()
        check(await http.post("/v1/sandboxes", json={}), "/v1/sandboxes", "post")
        check(await http.post("/v1/sandboxes", json={"other": 1}), "/v1/sandboxes", "post")
        check(await http.get("/v1/sandboxes"), "/v1/sandboxes", "get")
        one = f"/v1/sandboxes/{made['id']}"
        check(await http.get(one), "/v1/sandboxes/{sandbox}", "get")
        check(await http.post(f"{one}/renew", json={"ttl_s": 9}), "/v1/sandboxes/{sandbox}/renew", "post")
        body = {"argv": ["echo", "x"], "timeout_s": 5, "env": None, "cwd": None}
        check(await http.post(f"{one}/exec", json=body), "/v1/sandboxes/{sandbox}/exec", "post")
        check(await http.put(f"{one}/files?path=a", content=b"x"), "/v1/sandboxes/{sandbox}/files", "put")
        check(await http.get(f"{one}/files?path=a"), "/v1/sandboxes/{sandbox}/files", "get")
        check(await http.get(f"{one}/files?path=b"), "/v1/sandboxes/{sandbox}/files", "get")
        assert (await http.get(f"{one}/ports/5000/platform")).text == "Linux"
        assert (await http.get(f"{one}/ports/22/platform")).status_code == 404
        check(await http.delete(one), "/v1/sandboxes/{sandbox}", "delete")
        check(await http.get(one), "/v1/sandboxes/{sandbox}", "get")
        del http.headers["authorization"]
        for path, method in (("/v1/sandboxes", "post"), ("/v1/sandboxes", "get")):
            assert check(await http.request(method, path), path, method).status_code == 401


async def test_a_real_desktop_is_driven_through_server_and_gateway(monkeypatch):
    async with bridge() as running, serve_gateway([upstream(running)], {TOKEN: None}) as (address, _):
        monkeypatch.setenv("OSWORLD_SANDBOX_ENDPOINT", address)
        monkeypatch.setenv("OSWORLD_SANDBOX_TOKEN", TOKEN)
        async with SandboxPool(spec=SCREEN, polling=ScreenPolling(0.05, 2, 2)) as pool:
            lease = await pool.lease()
            desktop = lease.desktop
            await desktop.push("a.txt", b"x")
            assert await desktop.pull("a.txt") == b"x"
            assert (await desktop.run(["sh", "-c", "pwd; exit 3"], cwd="/tmp")).returncode == 3
            frame = await desktop.perform([Move(Point(30, 40, screen_px(320, 240)))], action_id="1")
            assert frame.cursor == (30, 40)
            (held,) = running.leases
            assert (await held.desktop.observe()).cursor == (30, 40)
            await held.desktop.launch(["xterm", "-geometry", "30x8+0+0", "-e", "sh", "-c", "cat > typed.txt"])
            await held.desktop.wait_window("xterm")
            await held.desktop.observe()
            await desktop.perform([Type("über\n")], action_id="2")
            waiting = ["sh", "-c", "until [ -s typed.txt ]; do sleep 0.02; done; cat typed.txt"]
            assert (await held.desktop.run(waiting, timeout_s=limit(5))).stdout.decode() == "über\n"
            again = await desktop.reset(SCREEN)
            assert again.size == (320, 240)
            with pytest.raises(FileNotFoundError):
                await desktop.pull("a.txt")
            await pool.release(lease)
            await wait_until(lambda: not list(running.leases))


async def test_work_waits_while_the_gateway_is_full():
    lot = QuotaManager(seed=1)
    async with gateway(1) as (address, server, _), SandboxPool(address, TOKEN, timeouts=QUICK, quota=lot) as pool:
        first = await pool.create(SCREEN)
        waiting = asyncio.create_task(pool.create(SCREEN))
        await wait_until(lambda: lot.num_waiting == 1)
        assert "waiting at" in lot.summary()
        assert TOKEN not in lot.summary()
        await pool.delete(first)
        second = await asyncio.wait({waiting}, timeout=limit(8))
        assert second[0], "it goes on within Retry-After"
        await pool.delete(waiting.result())
        assert server._sandboxes == {}


async def test_a_refused_request_for_a_sandbox_holds_nothing():
    async with gateway(1) as (address, _, _):
        for token, width in (("a-wrong-token-of-tests", 64), (TOKEN, 3)):
            async with gateway_client(address, token) as client:
                with pytest.raises(ConfigError, match=r"40[01]"):
                    await create(client, width=width)
                assert client.client.gate.desktops.held == 0


async def test_a_token_has_its_quota_and_its_own_sandboxes():
    async with gateway(3) as (address, _, _), httpx2.AsyncClient(base_url=address) as http:
        mine, other = bearer(TOKEN), bearer("another-token-of-tests")
        first = (await http.post("/v1/sandboxes", headers=other)).json()
        assert (await http.post("/v1/sandboxes", headers=other)).status_code == 429
        second = (await http.post("/v1/sandboxes", headers=mine)).json()
        for headers, sandbox, status in (
            (mine, first, 401), (other, first, 200), (bearer(first["key"]), first, 200),
            (bearer(first["key"]), second, 401), (bearer(second["key"]), first, 401), ({}, first, 401),
            (bearer("x" * 20), first, 401),
        ):  # fmt: skip
            for path in ("", "/ports/5000/platform"):
                assert (await http.get(f"/v1/sandboxes/{sandbox['id']}{path}", headers=headers)).status_code == status
        listed = (await http.get("/v1/sandboxes", headers=mine)).json()["sandboxes"]
        assert [each["id"] for each in listed] == [second["id"]]
        assert "key" not in json.dumps(listed)
        assert (await http.get("/v1/sandboxes", headers=bearer(first["key"]))).status_code == 401
        for path in (
            "/ports/5000/../desktop/windows",
            "/ports/5000/%2e%2e/desktop/windows",
            "/ports/5000/a/..%2f..%2fx",
        ):
            url = f"{address}/v1/sandboxes/{second['id']}{path}"
            assert (await http.get(httpx2.URL(url), headers=mine)).status_code in (400, 404)


async def test_a_sandbox_that_is_not_renewed_is_deleted():
    now = [0.0]
    async with gateway(2, clock=lambda: now[0]) as (address, server, made), gateway_client(address) as client:
        renewed, lost = await create(client, ttl_s=10), await create(client, "b", ttl_s=10)
        assert (await create(client, "b", ttl_s=10)).id == lost.id
        now[0] = 8.0
        await client.renew(renewed, 10)
        now[0] = 16.0
        await server.expire()
        assert list(server._sandboxes) == [renewed.id]
        with pytest.raises(InfrastructureError, match="410"):
            await client.get(lost)
        await wait_until(lambda: sum(desktop.closed for desktop in made) >= 1)
        await client.delete(lost)
        await client.delete(renewed)


async def test_one_of_several_servers_may_be_unreachable():
    async with gateway(1, servers=2) as (_, server, _):
        urls = ["http://127.0.0.1:9", *(each.base_url for each in server.upstreams)]
        serving = serve_gateway([UpstreamServer(url, OWNER_KEY) for url in urls], {TOKEN: None})
        async with serving as (address, _), gateway_client(address) as client:
            assert len({(await create(client, str(number))).id for number in range(2)}) == 2


async def test_a_command_is_run_once_when_the_reply_is_lost():
    class Losing(httpx2.AsyncHTTPTransport):
        lost = 0

        async def handle_async_request(self, request):
            reply = await super().handle_async_request(request)
            if request.url.path.endswith("/exec") and self.lost < 2:
                self.lost += 1
                await reply.aclose()
                raise httpx2.ReadError("lost", request=request)
            return reply

    async with gateway(1) as (address, _, made), gateway_client(address, transport=Losing()) as client:
        done = await client.exec(await create(client), ["touch", "x"], timeout_s=5)
        assert done.stdout == b"touch x"
        assert [argv for desktop in made for argv in desktop.ran] == [["touch", "x"]]


def test_adapters_are_loaded_only_when_they_are_named(monkeypatch):
    loaded = []

    class Entry:
        name = "vendor"

        def load(self):
            loaded.append(1)
            return lambda endpoint, token: (endpoint, token)

    monkeypatch.setattr(
        metadata, "entry_points", lambda group: [Entry()] if group == "deskhand.sandbox_providers" else []
    )
    assert isinstance(connect_sandbox_api("https://a.example", "t"), HttpSandboxApi)
    assert loaded == []
    assert connect_sandbox_api("vendor:eu-1", "t") == ("eu-1", "t")
    with pytest.raises(ConfigError, match="vendor"):
        connect_sandbox_api("other:x", "t")
    variables = {"OSWORLD_SANDBOX_ENDPOINT": "https://a.example", "OSWORLD_SANDBOX_TOKEN": "t"}
    assert endpoint_of(variables) == ("https://a.example", "t")
    with pytest.raises(ConfigError, match="OSWORLD_SANDBOX_ENDPOINT"):
        endpoint_of({})
    with pytest.raises(ConfigError, match="without credentials"):
        connect_sandbox_api("https://user:secret@a.example", None)


class Full(httpx2.AsyncHTTPTransport):
    """Refuses what acts for 2.5 s, as a provider does that counts requests."""

    until = 0.0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/execute"):
            self.until = self.until or time.monotonic() + 2.5
            if time.monotonic() < self.until:
                return httpx2.Response(429, headers={"retry-after": "2.6"}, request=request)
        return await super().handle_async_request(request)


async def test_a_sandbox_is_renewed_while_its_episode_waits_for_quota():
    async with bridge() as running, serve_gateway([upstream(running)], {TOKEN: None}) as (address, _):
        settings: dict[str, Any] = {"polling": ScreenPolling(0.05, 2, 2), "transport": Full()}
        async with SandboxPool(address, TOKEN, spec=SCREEN, ttl_s=1.0, **settings) as pool:
            lease = await pool.lease()
            (held,) = running.leases
            frame = await lease.desktop.perform([Move(Point(30, 40, screen_px(320, 240)))], action_id="1")
            assert frame.cursor == (30, 40)
            assert pool.quota.total_s >= 2.5
            assert list(running.leases) == [held], "it is the same desktop"


class Stuck:
    """A provider that does not answer when its first sandbox is to be renewed."""

    def __init__(self) -> None:
        self.renewed: list[str] = []
        self.names = itertools.count(1)

    async def create(self, *, ttl_s: float, **named: Any) -> Sandbox:
        return Sandbox(str(next(self.names)), "ready", ttl_s)

    def port(self, sandbox: Sandbox, port: int) -> GuestPort:
        return GuestPort("http://guest.test", None)

    async def renew(self, sandbox: Sandbox, ttl_s: float) -> None:
        self.renewed.append(sandbox.id)
        if sandbox.id == "1":
            await asyncio.sleep(3600)

    async def delete(self, sandbox: Sandbox) -> None:
        return

    async def close(self) -> None:
        return


def stuck_pool(tmp_path: Path, stuck: Any, ttl_s: float = 120.0) -> SandboxPool:
    guest, screen = httpx2.ASGITransport(app=FakeOsworld(tmp_path, (64, 48)).app), DesktopSpec("plain", 64, 48)
    settings: dict[str, Any] = {"api": stuck, "transport": guest, "polling": ScreenPolling(0, 0, 1)}
    return SandboxPool("http://a", spec=screen, ttl_s=ttl_s, **settings)


async def test_a_sandbox_whose_machine_is_unreachable_does_not_delay_the_renewal_of_others(tmp_path):
    stuck = Stuck()
    async with stuck_pool(tmp_path, stuck, ttl_s=0.4) as pool:
        for _ in range(2):
            await pool.lease()
        await wait_until(lambda: stuck.renewed.count("2") >= 4)


async def test_a_sandbox_whose_server_was_used_directly_is_replaced_by_a_reset(tmp_path):
    async with stuck_pool(tmp_path, Stuck()) as pool:
        desktop: Any = (await pool.lease()).desktop
        first = desktop.sandbox.id
        await desktop.server.upload("/home/user/left.txt", b"x")
        await desktop.reset(pool.spec)
        assert desktop.sandbox.id != first


async def test_a_lease_without_a_key_is_asked_without_one():
    asked: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers.get("authorization"))
        return httpx2.Response(200, json={})

    server = UpstreamServer("http://127.0.0.1:1", None)
    server.connect(httpx2.MockTransport(answer))
    for key in (None, "a-key"):
        lease = SandboxReply.model_validate({"id": "a", "ttl_s": 60.0, "key": key})
        await _Sandbox("a", b"", b"", server, lease, 60.0, 0.0).send("GET", "/frame")
    assert asked == [None, "Bearer a-key"]
