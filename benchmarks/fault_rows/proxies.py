"""Row 19: replies of proxies of every kind, for the clients of desktop servers, sandbox gateways and machines.

A kind spoils half of the requests, so that some calls never get a valid reply. Every call is compared with what was
performed: none twice, none lost that was acknowledged, and none performed that was reported as not performed.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2
import structlog

from benchmarks.fault_rows.parts import KEY, SCREEN, Row, point, scaled
from deskhand.actions.ops import Move, Type
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import StageableDesktop
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.quota import Clock, QuotaManager
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.sandbox_api import HttpSandboxApi
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.desktop.remote.transport import Sandbox
from deskhand.desktop.remote.waa_desktop import WaaDesktop
from deskhand.errors import DeliveryUnknown
from deskhand.osworld.clients import RemoteOsworldClient
from deskhand.server.active_leases import ActiveLeases
from deskhand.server.app import create_app
from deskhand.server.auth import LeaseAuth
from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer

SHARE = 0.5
CALLS = 2000
"""Of each kind and client, at full size."""
FEWER = 20
"""Kinds that are time-outs get this fraction of the calls."""
VARIANT = 4
"""Clients that are variants of another get this fraction of the calls."""
ATTEMPTS = RemoteTimeouts(
    connect_s=2.0, read_s=5.0, step_s=600.0, max_attempts=3, initial_backoff_s=0.0001, max_backoff_s=0.001
)
SPED_UP = 2000.0
"""How much faster quota pauses pass: refusals that follow each other pause for up to a minute."""
TOKEN = "the-token-of-the-fault-matrix"
LOOKING = ScreenPolling(pause_s=0.0, max_screenshots=1)
PAGE = "<html><head><title>Error</title></head><body><center>nginx</center></body></html>"
AFTER = (200, 204, 302, 400, 401, 403, 404, 405, 408, 409, 410, 413, 421, 500, 502, 503, 504, 520, 530)
BEFORE = (200, 404, 408, 429, 500, 502, 503)
Spoil = Callable[[httpx2.Request], httpx2.Response]
GROUPS = ("server", "gateway", "osworld", "waa", "setup")
"""Of clients; groups are checked side by side."""
When = Literal["before", "after", "twice"]


def _page(status: int, **headers: str) -> Spoil:
    sent = {"content-type": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return lambda request: httpx2.Response(status, headers=sent, text=PAGE, request=request)


def _json(status: int, body: Any) -> Spoil:
    return lambda request: httpx2.Response(status, json=body, request=request)


def _raising(kind: type[httpx2.TransportError]) -> Spoil:
    def fail(request: httpx2.Request) -> httpx2.Response:
        raise kind("injected", request=request)

    return fail


def _half_json(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": "application/json"}, content=b'{"retur', request=request)


KINDS: dict[str, tuple[When, Spoil]] = {
    **{f"page {status} after": ("after", _page(status)) for status in AFTER},
    **{f"page {status} before": ("before", _page(status)) for status in BEFORE},
    "page 503 with Retry-After after": ("after", _page(503, retry_after="0")),
    "page 429 with a wrong clock": ("before", _page(429, retry_after="Sat, 01 Jan 2000 00:00:00 GMT")),
    "429 with Retry-After -5": ("before", _page(429, retry_after="-5")),
    "429 with Retry-After inf": ("before", _page(429, retry_after="inf")),
    "JSON of another shape": ("after", _json(200, {"ok": True})),
    "an error in JSON of another shape": ("after", _json(500, [])),
    "half of the JSON": ("after", _half_json),
    "empty": ("after", lambda request: httpx2.Response(200, request=request)),
    "lost": ("after", _raising(httpx2.ReadError)),
    "cut": ("after", _raising(httpx2.RemoteProtocolError)),
    "timed out": ("after", _raising(httpx2.ReadTimeout)),
    "timed out before": ("before", _raising(httpx2.ConnectTimeout)),
    "not delivered": ("before", _raising(httpx2.ConnectError)),
    "delivered twice": ("twice", _raising(httpx2.ReadError)),
}


class Proxy(httpx2.AsyncBaseTransport):
    """Spoils a share of the replies to requests whose path ends in one of `paths`."""

    def __init__(self, app: Any, paths: tuple[str, ...]) -> None:
        self._inner = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
        self._paths = paths
        self._random = random.Random(19)
        self.kind: tuple[When, Spoil] | None = None
        self.injected = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        spoiled = self.kind is not None and request.url.path.endswith(self._paths) and self._random.random() < SHARE
        if self.kind is None or not spoiled:
            return await self._inner.handle_async_request(request)
        when, spoil = self.kind
        self.injected += 1
        for _ in range({"before": 0, "after": 1, "twice": 2}[when]):
            await self._inner.handle_async_request(request)
        return spoil(request)


@dataclass
class Client:
    """A client under test: `act(number)` does something once, and `performed()` counts it by number."""

    name: str
    proxy: Proxy
    act: Callable[[int], Awaitable[Any]]
    performed: Callable[[], Counter[int]]
    can_repeat: bool = True
    """Whether a second copy of a request is harmless."""
    calls: int = CALLS


def _quota() -> QuotaManager:
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / SPED_UP)

    return QuotaManager(clock=Clock(now=lambda: SPED_UP * time.monotonic(), sleep=sleep), seed=19)


@asynccontextmanager
async def _leasing_clients() -> AsyncIterator[list[Client]]:
    """Commands through a desktop server, a sandbox gateway, and a gateway whose own requests pass a proxy."""
    from fake_pool import painted_pool

    made: list[Any] = []
    own = painted_pool(3, made, SCREEN)
    async with own:
        leases = ActiveLeases(own, idle_s=3600.0)
        app = create_app(leases, LeaseAuth(leases, KEY))
        upstreams = [UpstreamServer("http://server.test", KEY)]
        near, between = Proxy(app, ("/run",)), Proxy(app, ("/run",))
        gateway = SandboxGatewayServer(upstreams, {TOKEN: None}, transport=between)
        far = Proxy(gateway.app(), ("/exec",))
        pool = ServerPool("http://server.test", KEY, spec=SCREEN, timeouts=ATTEMPTS, quota=_quota(), transport=near)
        api = HttpSandboxApi("http://gateway.test", TOKEN, timeouts=ATTEMPTS, quota=_quota(), transport=far)
        lease = await pool.lease()
        size = {"width": SCREEN.width, "height": SCREEN.height}
        sandboxes = [await api.create(image=None, **size, ttl_s=3600.0, request_id=name) for name in ("a", "b")]

        def counting(place: int) -> Callable[[], Counter[int]]:
            return lambda: Counter(int(argv[1]) for argv in made[place].ran if argv[0] == "act")

        def running_in(sandbox: Sandbox) -> Callable[[int], Awaitable[Any]]:
            return lambda number: api.exec(sandbox, ["act", str(number)], timeout_s=5)

        try:
            yield [
                Client("server", near, lambda number: lease.desktop.run(["act", str(number)]), counting(0)),
                Client("gateway", far, running_in(sandboxes[0]), counting(1)),
                Client("gateway's server", between, running_in(sandboxes[1]), counting(2), calls=CALLS // VARIANT),
            ]
        finally:
            near.kind = between.kind = far.kind = None
            await pool.close()
            await api.close()
            await gateway.close()
            await leases.close()


async def _machine_client(kind: str, folder: Path) -> Client:
    """Actions on a machine with OSWorld's or WAA's server."""
    from fake_osworld import FakeOsworld
    from fake_waa import FakeWaa

    fake = (FakeWaa if kind == "waa" else FakeOsworld)(folder / kind, (SCREEN.width, SCREEN.height))
    proxy = Proxy(fake.app, ("/execute", "/execute_windows"))
    link = RetryingClient(f"http://{kind}.test", timeouts=ATTEMPTS, transport=proxy, wait_for_quota=False)
    desktop: StageableDesktop = (
        WaaDesktop(link, polling=LOOKING, ready_s=5)
        if kind == "waa"
        else OsworldDesktop(link, skip_reset=True, polling=LOOKING)
    )
    await desktop.reset(SCREEN)
    done: Counter[int] = Counter()

    async def act(number: int) -> None:
        before = len(fake.guest.text)
        try:
            await desktop.perform([Move(point(number % 60, 7)), Type("x")], action_id=str(number))
        finally:
            done[number] += len(fake.guest.text) - before
            fake.guest.text = ""
            fake.guest.journal.clear()

    return Client(kind, proxy, act, lambda: done, calls=CALLS // (VARIANT if kind == "waa" else 1))


def _setup_client(folder: Path) -> Client:
    """Setup steps of OSWorld's tasks, which the server cannot deduplicate."""
    from fake_osworld import FakeOsworld

    fake = FakeOsworld(folder / "setup", (SCREEN.width, SCREEN.height))
    proxy = Proxy(fake.app, ("/setup/launch",))
    link = RetryingClient("http://setup.test", timeouts=ATTEMPTS, quota=_quota(), transport=proxy)
    machine = RemoteOsworldClient(OsworldDesktop(link, skip_reset=True), SCREEN)
    done: Counter[int] = Counter()

    async def act(number: int) -> None:
        try:
            await machine.request("POST", "/setup/launch", json={"command": ["act"], "shell": False})
        finally:
            done[number] += len(fake.guest.windows)
            fake.guest.windows.clear()

    return Client("setup steps", proxy, act, lambda: done, can_repeat=False, calls=CALLS // VARIANT)


async def _check(row: Row, client: Client, size: float) -> None:
    number, results = 0, dict[int, str]()
    for name, kind in KINDS.items():
        if kind[0] == "twice" and not client.can_repeat:
            continue  # the network itself performs it twice
        client.proxy.kind = kind
        for _ in range(scaled(size, 4, client.calls // (FEWER if "timed out" in name else 1))):
            number += 1
            try:
                await client.act(number)
                results[number] = f"{name}: performed"
            except DeliveryUnknown:
                results[number] = f"{name}: unknown"
            except Exception as error:
                results[number] = f"{name}: not performed ({type(error).__name__})"
    client.proxy.kind = None
    performed = client.performed()
    twice = [results[each] for each in results if performed[each] > 1]
    lost = [results[each] for each in results if results[each].endswith(": performed") and not performed[each]]
    wrong = [results[each] for each in results if "not performed" in results[each] and performed[each]]
    for what, found in (("performed twice", twice), ("lost", lost), ("reported as not performed", wrong)):
        row.demand(not found, f"{client.name}: {len(found)} {what}, first {found[:1]}")
    row.steps += len(results)
    row.injected += client.proxy.injected
    row.survived += client.proxy.injected - len(twice) - len(lost) - len(wrong)
    row.unscored += sum(not each.endswith(": performed") for each in results.values())
    ended = Counter(each.partition(": ")[2].partition(" (")[0] for each in results.values())
    shares = ", ".join(f"{ended[how]} {how}" for how in ("performed", "unknown", "not performed"))
    faults = f"{client.proxy.injected} spoiled replies; {len(twice)} twice, {len(lost)} lost, {len(wrong)} misreported"
    row.details.append(f"{client.name}: {len(results)} calls ({shares}), {faults}")


@asynccontextmanager
async def _clients(name: str, folder: Path) -> AsyncIterator[list[Client]]:
    """The clients of a group. Those of the gateway share a proxy."""
    if name in ("server", "gateway"):
        async with _leasing_clients() as (direct, *through_gateway):
            yield [direct] if name == "server" else through_gateway
    else:
        yield [_setup_client(folder) if name == "setup" else await _machine_client(name, folder)]


async def _check_group(name: str, size: float, folder: Path) -> Row:
    row = Row(19, f"{len(KINDS)} kinds of proxy replies at {100 * SHARE:.0f} %")
    async with _clients(name, folder) as clients:
        for client in clients:
            await _check(row, client, size)
    return row


def _run_group(name: str, size: float, folder: Path) -> Row:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return asyncio.run(_check_group(name, size, folder))


async def row_19(size: float, folder: Path) -> Row:
    """Proxies: every kind of reply, before and after execution. At full size each group has a process."""
    if size == 0:
        rows = await asyncio.gather(*(_check_group(name, size, folder) for name in GROUPS))
    else:
        loop, context = asyncio.get_running_loop(), multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(len(GROUPS), mp_context=context) as processes:
            rows = await asyncio.gather(
                *(loop.run_in_executor(processes, _run_group, name, size, folder) for name in GROUPS)
            )
    row = rows[0]
    for other in rows[1:]:
        row.add(other)
    row.note = f"0 duplicate, 0 lost, 0 wrongly reported of {row.steps} calls" if not row.wrong else ""
    return row
