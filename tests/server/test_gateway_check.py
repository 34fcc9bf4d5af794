"""`deskhand gateway check`: Deskhand's own gateway keeps every promise, and each broken one is found."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_pool import Painted
from server_client import OWNER_KEY, bridge, serve_gateway, upstream
from test_sandbox_gateway import TOKEN

from deskhand.cli import gateway as command
from deskhand.desktop.base import CommandResult, DesktopSpec
from deskhand.desktop.pool import DesktopPool
from deskhand.desktop.remote.http_connection import open_http
from deskhand.doctor import check_gateway
from deskhand.doctor.check_gateway import CHECKS
from deskhand.doctor.gateway_probe import Deviation, Gateway
from deskhand.errors import ConfigError
from deskhand.server.process import ServerConfig, serve_pool


class Shell(Painted):
    """Runs commands on this machine, in a folder of its own."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home = home
        home.mkdir()

    async def run(self, argv: list[str], *, timeout_s: float = 30.0, env: Any = None, cwd: Any = None) -> CommandResult:
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.home), "DISPLAY": ":7", **(env or {})}
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, cwd=self.home / (cwd or "."), env=variables, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except FileNotFoundError:
            return CommandResult(127, b"", b"no such program")
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, 9)
            out, err = await process.communicate()
            return CommandResult(124, b"before", err)
        assert process.returncode is not None
        return CommandResult(process.returncode, out, err)

    async def pull(self, path: str) -> bytes:
        return await asyncio.to_thread((self.home / path).read_bytes)

    async def push(self, path: str, data: bytes) -> None:
        (self.home / path).parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread((self.home / path).write_bytes, data)


class Altered(httpx2.AsyncHTTPTransport):
    """A gateway that differs: `before` may change a request, `after` replaces a reply."""

    def __init__(
        self,
        before: Callable[[httpx2.Request], object] = lambda request: None,
        after: Callable[[httpx2.Request, httpx2.Response], httpx2.Response] = lambda request, reply: reply,
    ) -> None:
        super().__init__()
        self._before, self._after = before, after

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._before(request)
        reply = await super().handle_async_request(request)
        await reply.aread()
        return self._after(request, reply)


@asynccontextmanager
async def shell_gateway(folder: Path, desktops: int = 3) -> AsyncIterator[str]:
    made: list[Shell] = []

    def make() -> Any:
        made.append(Shell(folder / f"home-{len(made)}"))
        return made[-1]

    pool = DesktopPool(desktops, DesktopSpec("plain", 64, 48), prewarm=0, make=make, memory_request_mib=None)
    async with (
        pool,
        serve_pool(pool, ServerConfig(port=0, admin_key=OWNER_KEY)) as running,
        serve_gateway([upstream(running)], {TOKEN: None}) as (address, _),
    ):
        yield address


@asynccontextmanager
async def opened(address: str, transport: httpx2.AsyncBaseTransport | None = None) -> AsyncIterator[Gateway]:
    """The gateway with a sandbox that was created without any alteration."""
    async with open_http(address, timeout=30) as http, open_http(address, transport, timeout=30) as altered:
        plain = Gateway(http, TOKEN, 10.0)
        sandbox = await plain.create()
        yield Gateway(altered, TOKEN, 10.0, transport, sandbox)
        assert await plain.clean_up() == []


async def test_the_gateway_of_real_desktops_keeps_every_promise():
    async with bridge(2) as running, serve_gateway([upstream(running)], {TOKEN: None}) as (address, _):
        results = await check_gateway.check_gateway(address, TOKEN)
        assert list(running.leases) == [], "nothing is left"
    assert [f"{result.name}: {result.detail}" for result in results if not result.ok] == []
    assert [result.name for result in results] == [name for name, _ in CHECKS]


GUEST_CHECKS = ("port 5000", "actions", "expiry")
"""Checks that need a real guest, or ten seconds."""


async def test_a_gateway_that_keeps_its_promises_passes_each_check_alone(tmp_path):
    async with shell_gateway(tmp_path) as address:
        for name, check in CHECKS:
            if name not in GUEST_CHECKS:
                async with opened(address) as gateway:
                    assert await check(gateway), name


NUMBERS = itertools.count()


def status(before: int, after: int, path: str = "") -> Callable[[httpx2.Request, httpx2.Response], httpx2.Response]:
    """Replies to paths with `path` that have status `before` have `after`."""

    def altered(request: httpx2.Request, reply: httpx2.Response) -> httpx2.Response:
        if reply.status_code != before or path not in request.url.path:
            return reply
        return httpx2.Response(after, headers=reply.headers, content=reply.content)

    return altered


def body(path: str, text: str, replacement: str) -> Callable[[httpx2.Request, httpx2.Response], httpx2.Response]:
    """In replies to paths that end in `path`, `text` is replaced."""

    def altered(request: httpx2.Request, reply: httpx2.Response) -> httpx2.Response:
        if not request.url.path.endswith(path) or text not in reply.text:
            return reply
        headers = {"content-type": reply.headers["content-type"]}
        return httpx2.Response(reply.status_code, headers=headers, text=reply.text.replace(text, replacement))

    return altered


def page(path: str) -> Callable[[httpx2.Request, httpx2.Response], httpx2.Response]:
    def altered(request: httpx2.Request, reply: httpx2.Response) -> httpx2.Response:
        if not request.url.path.endswith(path):
            return reply
        return httpx2.Response(reply.status_code, headers={"content-type": "text/html"}, text="<html>")

    return altered


def another_key(request: httpx2.Request, reply: httpx2.Response) -> httpx2.Response:
    return body("/sandboxes", '"key":"', f'"key":"{next(NUMBERS)}')(request, reply)


def without_id(request: httpx2.Request) -> None:
    request.headers.pop("x-request-id", None)


def always_the_token(request: httpx2.Request) -> None:
    request.headers["authorization"] = f"Bearer {TOKEN}"


def in_tmp(request: httpx2.Request) -> None:
    if request.url.path.endswith("/files"):
        request.url = request.url.copy_set_param("path", f"elsewhere/{request.url.params['path']}")


BROKEN: dict[str, tuple[str, Altered]] = {
    "a health page in HTML": ("health", Altered(after=page("/health"))),
    "health without a status": ("health", Altered(after=body("/health", "status", "state"))),
    "403 for a wrong token": ("access", Altered(after=status(401, 403))),
    "any token is valid": ("access", Altered(always_the_token)),
    "invalid requests are 500": ("invalid", Altered(after=status(400, 500))),
    "request ids are ignored on create": ("create", Altered(without_id)),
    "another key for the same id": ("create", Altered(after=another_key)),
    "a failed sandbox": ("ready", Altered(after=body("", '"ready"', '"failed"'))),
    "an unknown state": ("ready", Altered(after=body("", '"ready"', '"running"'))),
    "a list with keys": ("list", Altered(after=body("/sandboxes", '"state"', '"key":"k","state"'))),
    "an empty list": ("list", Altered(after=body("/sandboxes", '"id":"', '"id":"x'))),
    "any key opens a sandbox": ("keys", Altered(always_the_token)),
    "a renewal that does nothing": ("renew", Altered(after=body("/renew", "300", "120"))),
    "exit codes as text": ("exec", Altered(after=body("/exec", '"returncode":3', '"returncode":"3"'))),
    "exit codes are lost": ("exec", Altered(after=body("/exec", '"returncode":3', '"returncode":0'))),
    "outputs as text": ("exec", Altered(after=body("/exec", '"stdout":"', '"stdout":"-'))),
    "invalid commands are 422": ("exec errors", Altered(after=status(400, 422))),
    "missing programs exit with 1": ("exec errors", Altered(after=body("/exec", ":127", ":1"))),
    "time limits exit with 137": ("exec time", Altered(after=body("/exec", ":124", ":137"))),
    "request ids are ignored on exec": ("exec once", Altered(without_id)),
    "files as HTML": ("files", Altered(after=page("/files"))),
    "missing files are empty": ("files", Altered(after=status(404, 200))),
    "relative paths are elsewhere": ("files", Altered(in_tmp)),
    "deleted sandboxes are 404": ("delete", Altered(after=status(410, 404))),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_promise_is_found(tmp_path, name: str):
    check_name, transport = BROKEN[name]
    async with shell_gateway(tmp_path) as address, opened(address, transport) as gateway:
        with pytest.raises(Deviation):
            await dict(CHECKS)[check_name](gateway)


class Lax(httpx2.AsyncHTTPTransport):
    """A gateway that creates a sandbox whatever the request is; if `silent`, without a reply at first."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__()
        self._left = 1 if silent else 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (request.method, request.url.path) == ("POST", "/v1/sandboxes"):
            name = request.headers.get("x-request-id")
            headers = {"authorization": f"Bearer {TOKEN}"} | ({"x-request-id": name} if name else {})
            reply = await super().handle_async_request(httpx2.Request("POST", request.url, headers=headers, json={}))
            if name and self._left:
                self._left -= 1
                await reply.aread()
                raise httpx2.ReadTimeout("told to be silent", request=request)
            return reply
        if request.url.path.endswith("/exec"):
            raise KeyError("a check that fails by an error of its own")
        return await super().handle_async_request(request)


@pytest.mark.parametrize("silent", [False, True])
async def test_nothing_is_left_of_a_check_that_failed(tmp_path, silent: bool):
    async with shell_gateway(tmp_path, desktops=16) as address:
        with pytest.raises(KeyError) if not silent else nullcontext():
            results = await check_gateway.check_gateway(address, TOKEN, transport=Lax(silent=silent))
            assert "create" in {result.name for result in results if not result.ok}
        async with open_http(address) as http:
            reply = await http.get("/v1/sandboxes", headers={"authorization": f"Bearer {TOKEN}"})
        assert [each for each in reply.json()["sandboxes"] if each["state"] != "deleted"] == []


async def test_a_sandbox_that_is_creating_says_when_to_come_back():
    asked: list[str] = []
    early = httpx2.Response(503, headers={"retry-after": "0.1"}, json={"error": "creating"})

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        if request.url.path.endswith("/exec"):
            return early
        return httpx2.Response(200, json={"id": "a", "ttl_s": 60, "state": "creating" if len(asked) < 3 else "ready"})

    async with open_http("http://g.test", httpx2.MockTransport(answer)) as http:
        gateway = Gateway(http, TOKEN, 10.0)
        assert "503" in await check_gateway._ready(gateway)
        early = httpx2.Response(503, headers={"retry-after": "0.1"}, json={"error": "creating", "status": 503})
        asked.clear()
        with pytest.raises(Deviation, match="another body"):
            await check_gateway._ready(gateway)
        early = httpx2.Response(503, json={"error": "creating"})
        asked.clear()
        with pytest.raises(Deviation, match="Retry-After"):
            await check_gateway._ready(gateway)


async def test_the_checks_stop_where_there_is_no_gateway():
    (result,) = await check_gateway.check_gateway("http://127.0.0.1:9", TOKEN)
    assert (result.name, result.ok) == ("health", False)
    assert "ConnectError" in result.detail
    with pytest.raises(ConfigError):
        await check_gateway.check_gateway("ftp://a", TOKEN)


def test_the_command_needs_a_token_and_a_url(monkeypatch):
    for name in ("OSWORLD_SANDBOX_TOKEN", "OSWORLD_SANDBOX_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="OSWORLD_SANDBOX_TOKEN is not set"):
        command.check("http://127.0.0.1:9")
    monkeypatch.setenv("OSWORLD_SANDBOX_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match="OSWORLD_SANDBOX_ENDPOINT is not set"):
        command.check()
    with pytest.raises(SystemExit) as ended:
        command.check("http://127.0.0.1:9")
    assert ended.value.code == 2
