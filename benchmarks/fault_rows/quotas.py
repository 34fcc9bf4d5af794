"""Rows 1, 2, 5, 13, 14 and 18: quotas, slow starts, clock jumps, keys, and providers that report wrong states."""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import time
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.fault_rows.parts import (
    KEY,
    QUICK,
    SCREEN,
    CountedEpisodes,
    Faults,
    Row,
    check_actions,
    faulty_server,
    scaled,
)
from deskhand.desktop.base import CommandResult
from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.quota_errors import QuotaExceeded, QuotaSignal
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.sandbox_api import GuestPort, Sandbox
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.errors import InfrastructureError


def _refusals(wait_s: float) -> list[dict[str, str]]:
    date = email.utils.formatdate(time.time() + 1, usegmt=True)
    return [{"retry-after": f"{wait_s}"}, {"retry-after": date}, {"retry-after-sandbox-create": f"{wait_s}"}, {}]


async def row_1(size: float, folder: Path) -> Row:
    """429 with Retry-After as seconds, date, with a unit, and missing."""
    row = Row(1, "429 with Retry-After s / date / suffixed / none")
    wait_s = 0.4
    refusals = _refusals(wait_s)
    for number, headers in enumerate(refusals):
        state = {"until": 0.0, "asked": [], "answered": 0.0, "epoch": 0}

        def refuse(request: httpx2.Request, state: Any = state, headers: Any = headers) -> httpx2.Response | None:
            if request.url.path != "/leases" or request.method != "POST":
                return None
            now = time.monotonic()
            if not state["until"]:
                state["until"] = now + (1.2 if "retry-after" in headers and "," in headers["retry-after"] else wait_s)
            if now >= state["until"]:
                state["answered"] = state["answered"] or now
                return None
            state["asked"].append(now)
            if "," in headers.get("retry-after", ""):
                headers = {"retry-after": email.utils.formatdate(time.time() + 1.2, usegmt=True)}
            return httpx2.Response(429, headers=headers, request=request)

        lot = QuotaManager(seed=number)
        async with faulty_server(8, Faults(refuse=refuse), quota=lot) as (pool, made, network, _):
            source = CountedEpisodes(pool, scaled(size, 8, 64), 3)
            await source.run(8)
            source.into(row)
            check_actions(row, made, 3)
            row.injected += network.injected
            row.survived += network.injected
            late_s = state["answered"] - state["until"]
            row.recovery_s.append(max(0.0, late_s) + wait_s)
            if number in (0, 2):
                row.demand(late_s <= 0.1 * wait_s + 0.1, f"it went on {late_s:.2f} s after the quota did ({headers})")
            gate = pool.gate.desktops
            row.demand(gate.tries <= len(source.results) + 8, f"{gate.tries} probes for {len(source.results)} episodes")
            row.demand(lot.num_waiting == 0, "some are parked for ever")
    row.demand(row.unscored == 0, f"{row.unscored} episodes were lost to a quota")
    return row


async def row_2(size: float, folder: Path) -> Row:
    """A day of 429 on a fake clock for 100 waiting clients."""
    from fake_clock import FakeClock

    row = Row(2, "429 for 24 h (fake clock)")
    clock = FakeClock()
    lot = QuotaManager(folder / "quota.json", clock=clock.clock, seed=1)
    gate = lot.gate("http://gateway.test", "token").desktops
    state = {"room": 0, "given": 0, "asked": 0}

    async def take() -> int:
        state["asked"] += 1
        if state["given"] >= state["room"]:
            raise QuotaExceeded(QuotaSignal("429", 30.0), "create")
        state["given"] += 1
        return state["given"]

    waiting = [asyncio.create_task(gate.run(take)) for _ in range(100)]
    hours = scaled(size, 24, 24)
    for _ in range(hours):
        await clock.pass_(3600)
        row.demand(lot.num_waiting == 100, f"only {lot.num_waiting} wait")
    row.injected = state["asked"]
    row.demand(state["asked"] <= 100 + hours * 3600 / 30 + 1, f"{state['asked']} requests in {hours} h")
    state["room"], again = 100, clock.time
    await clock.pass_(33)
    row.demand(state["given"] >= 1, "nobody went on within Retry-After and a tenth")
    row.recovery_s.append(clock.time - again)
    for _ in range(500):
        await clock.pass_(10)
    row.survived = row.injected if all(task.done() for task in waiting) else 0
    row.demand(all(task.done() for task in waiting), "not all went on")
    await _episodes_through_a_day(row)
    return row


async def _episodes_through_a_day(row: Row) -> None:
    """100 episodes whose server returns 429 for a day are all played and scored afterwards."""
    from fake_clock import FakeClock

    clock, refused, wait_s = FakeClock(), [0], 300
    full = {"now": True}

    def refuse(request: httpx2.Request) -> httpx2.Response | None:
        if not full["now"] or (request.method, request.url.path) != ("POST", "/leases"):
            return None
        refused[0] += 1
        return httpx2.Response(429, headers={"retry-after": str(wait_s)}, request=request)

    lot = QuotaManager(clock=clock.clock, seed=2)
    async with faulty_server(8, Faults(refuse=refuse), quota=lot) as (pool, made, _, _):
        source = CountedEpisodes(pool, 100, 2)
        playing = asyncio.create_task(source.run(100))
        while clock.time < 24 * 3600:
            await clock.pass_(wait_s / 2)
            await asyncio.sleep(0.001)  # what was sent is answered in true time
        row.demand(lot.num_waiting == 100, f"only {lot.num_waiting} of 100 episodes wait")
        row.demand(24 <= refused[0] <= 100 + 24 * 3600 / wait_s, f"{refused[0]} requests in a day")
        full["now"] = False
        async with asyncio.timeout(120):
            while not playing.done():
                await clock.pass_(1.0)
                await asyncio.sleep(0.001)
        await playing
        check_actions(row, made, 2)
    source.into(row)
    lost = sum(result.reward is None for result in source.results)
    row.demand(lost == 0, f"{lost} of 100 episodes were lost to a day of 429")
    row.injected += refused[0]
    row.survived += refused[0] if not lost else 0
    row.note = f"{lost} of 100 episodes lost"


class StubGateway:
    """Provider whose sandboxes take `boots_s` to start (None: never)."""

    def __init__(self, boots_s: float | None, quota: int) -> None:
        self.boots_s, self.quota = boots_s, quota
        self.made: dict[str, float] = {}
        self.most = 0

    async def create(self, *, image: str | None, width: int, height: int, ttl_s: float, request_id: str) -> Sandbox:
        if len(self.made) >= self.quota:
            raise QuotaExceeded(QuotaSignal("429", 0.02), "create")
        self.made[request_id] = time.monotonic()
        self.most = max(self.most, len(self.made))
        return Sandbox(request_id, "creating", ttl_s)

    async def get(self, sandbox: Sandbox) -> Sandbox:
        ready = self.boots_s is not None and time.monotonic() - self.made[sandbox.id] >= self.boots_s
        return Sandbox(sandbox.id, "ready" if ready else "creating", sandbox.ttl_s)

    async def exec(self, sandbox: Sandbox, argv: list[str], **named: Any) -> CommandResult:
        raise InfrastructureError("not here")

    async def read(self, sandbox: Sandbox, path: str) -> bytes:
        raise FileNotFoundError(path)

    async def write(self, sandbox: Sandbox, path: str, data: bytes) -> None:
        raise InfrastructureError("not here")

    def port(self, sandbox: Sandbox, port: int) -> GuestPort:
        return GuestPort("http://guest.test", None)

    async def renew(self, sandbox: Sandbox, ttl_s: float) -> None:
        return

    async def delete(self, sandbox: Sandbox) -> None:
        self.made.pop(sandbox.id, None)

    async def close(self) -> None:
        return


async def row_5(size: float, folder: Path) -> Row:
    """Sandboxes that start slowly, late or never; 1 s stands for 200 s."""
    row = Row(5, "slow boot 31 s / 299 s / never (a second for 200)")
    for boots_s, fine in ((0.155, True), (1.495, True), (None, False)):
        stub = StubGateway(boots_s, 4)
        pool = SandboxPool("http://gateway.test", None, boot_s=60.0 if fine else 1.8, api=stub)
        wanted = [asyncio.create_task(pool.create(SCREEN)) for _ in range(4 if fine else 6)]
        began = time.monotonic()
        done = await asyncio.gather(*wanted, return_exceptions=True)
        row.injected += len(wanted)
        row.survived += sum(isinstance(each, Sandbox) for each in done) if fine else len(wanted)
        row.recovery_s.append(time.monotonic() - began)
        row.demand(all(isinstance(each, Sandbox) for each in done) == fine, f"boots of {boots_s} s ended otherwise")
        for each in done:
            if isinstance(each, Sandbox):
                await pool.delete(each)
        row.demand(not stub.made, f"{len(stub.made)} sandboxes are left over")
        row.demand(stub.most <= 4, "more were held than the quota")
        await pool.close()
    return row


async def row_13(size: float, folder: Path) -> Row:
    """The wall clock jumps by an hour and back: no waiter wakes and no lease expires."""
    from fake_clock import FakeClock

    row = Row(13, "clock jump of an hour, both ways (fake clock)")
    clock = FakeClock()
    lot = QuotaManager(clock=clock.clock, seed=1)
    asked = []

    async def take() -> None:
        asked.append(clock.time)
        raise QuotaExceeded(QuotaSignal("429", 60.0), "create")

    task = asyncio.create_task(lot.gate("http://a").run(take))
    await clock.pass_(1)
    for jump in (3600.0, -7200.0, 3600.0):
        clock.jump += jump
        await clock.pass_(5)
        row.injected += 1
    row.demand(len(asked) == 1, f"{len(asked)} requests: a jump woke somebody")
    task.cancel()
    async with faulty_server(4, Faults()) as (pool, made, _, book):
        leases = [await pool.lease() for _ in range(4)]
        real = time.time
        try:
            for jump in (3600.0, -3600.0, 1e7):
                time.time = lambda jump=jump: real() + jump
                await book.expire_idle()
                for lease in leases:
                    await lease.desktop.observe()
                    row.steps += 1
                row.injected += 1
        finally:
            time.time = real
        row.demand(sum(1 for _ in book) == 4, "leases expired by a jump")
        row.demand(not any(desktop.closed for desktop in made), "desktops were ended by a jump")
    row.survived = row.injected
    return row


async def row_14(size: float, folder: Path) -> Row:
    """Leases used with foreign keys, epochs and names: rejected, nothing executed, no key in a response."""
    row = Row(14, "lease double-use, stale, revoked, wrong keys")
    async with faulty_server(3, Faults()) as (pool, made, network, _):
        leases = [await pool.lease() for _ in range(3)]
        told = {lease.epoch: lease.desktop for lease in leases}
        secrets = [desktop.sandbox.key for desktop in told.values()]
        ended = leases.pop()
        ended_name = pool.transport.path_of(ended.desktop.sandbox)
        await pool.release(ended)
        await asyncio.sleep(0)
        chance = random.Random(3)
        keys = [*secrets, "", "x" * 43, KEY[:-1], secrets[0][:-1], secrets[0] + "x", "Basic", "\x7f"]
        roots = [pool.transport.path_of(lease.desktop.sandbox) for lease in leases]
        roots += [ended_name, "/leases/ffffffffffffffff", "/leases/.."]
        async with httpx2.AsyncClient(transport=network, base_url="http://server.test") as http:
            for number in range(scaled(size, 400, 20_000)):
                at, key, epoch = (
                    chance.randrange(len(roots)),
                    chance.choice(keys),
                    chance.choice([1, 2, 3, 4, 0, -1, "x", "1 "]),
                )
                if number % 10 == 0:
                    at = number % 2
                    key, epoch = secrets[at], leases[at].epoch
                own = at < 2 and key == secrets[at] and str(epoch) == str(leases[at].epoch)
                body = json.dumps({"ops": [{"op": "move", "point": [1, 1]}], "action_id": f"fuzz-{number}"})
                headers = {"authorization": f"Bearer {key}", "x-deskhand-epoch": str(epoch)}
                reply = await http.post(f"{roots[at]}/desktop/perform", content=body, headers=headers)
                row.injected += not own
                row.steps += own
                if own:
                    row.demand(reply.status_code == 200, f"the holder was refused: {reply.status_code}")
                else:
                    refused = reply.status_code in (401, 403, 404, 409, 410)
                    row.survived += refused
                    row.demand(refused, f"{reply.status_code} for a key or epoch of another")
                    row.demand(not any(secret in reply.text for secret in [*secrets, KEY]), "an answer holds a key")
        performed = sum(len(desktop.actions) for desktop in made)
        row.demand(performed == row.steps, f"{performed} actions were performed, {row.steps} were allowed")
        row.wrong = row.wrong[:3]
    return row


async def row_18(size: float, folder: Path) -> Row:
    """A provider reports machines with dead, black or foreign screens: they are quarantined."""
    from fake_osworld import FakeOsworld
    from PIL import Image

    row = Row(18, "provider returns success for a dead VM")
    fakes = {f"http://vm{number}.test": FakeOsworld(folder / f"vm{number}", (64, 48)) for number in range(4)}
    black = folder / "black.png"
    Image.new("RGB", (64, 48)).save(black)
    names = list(fakes)
    data = black.read_bytes()
    fakes[names[0]].guest.picture = lambda: data  # type: ignore[method-assign]
    fakes[names[1]].guest.picture = lambda: b""  # type: ignore[method-assign]

    def make(address: str) -> OsworldDesktop:
        network = httpx2.ASGITransport(app=fakes[address].app)
        return OsworldDesktop(
            RetryingClient(address, timeouts=QUICK, transport=network),
            skip_reset=True,
            polling=ScreenPolling(0, 0, 1),
            ready_s=0.3,
        )

    now = [0.0]
    pool = MachinePool(names, make, spec=SCREEN, clock=lambda: now[0], quarantine_s=600.0)
    source = CountedEpisodes(pool, scaled(size, 12, 200), 4)
    await source.run(2)
    source.into(row)
    used = {name: fake.guest.acted for name, fake in fakes.items()}
    row.injected = 2
    row.survived = 2 if row.unscored == 0 else 0
    row.demand(used[names[0]] == used[names[1]] == 0, "a dead machine was used")
    row.demand(row.unscored == 0, f"{row.unscored} episodes were lost to machines that others could replace")
    await pool.close()
    return row
