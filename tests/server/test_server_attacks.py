"""Clients that know the protocol and mean harm, or are lost on the way: it costs nobody else anything, and is done
once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from fake_pool import Painted, painted_pool
from patience import limit
from server_client import OWNER_KEY, bearer, painted_server, wait_until

from deskhand.desktop.base import CommandResult, Frame
from deskhand.errors import DeliveryUnknown, FrameError
from deskhand.server.active_leases import UNCLAIMED_S, ActiveLeases
from deskhand.server.process import RunningServer
from deskhand.server.request_limits import RequestLimits


@asynccontextmanager
async def leased(running: RunningServer) -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    """A client that shows the key of a lease, and the lease's root."""
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", timeout=limit(30)) as http:
        lease = (await http.post("/leases", json={}, headers=bearer(OWNER_KEY))).json()
        http.headers.update(bearer(lease["key"]))
        yield http, f"/leases/{lease['lease']}"


async def test_a_client_that_sends_a_body_after_the_reply_is_disconnected():
    """A client without a key would keep a place for as long as it sends a byte now and then."""

    async def trickle(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.05)

    async with painted_server(limits=RequestLimits(head_s=0.3)) as (running, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"POST /leases HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000000000\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401")
        sending = asyncio.create_task(trickle(writer))
        try:
            async with asyncio.timeout(limit(8)):
                with contextlib.suppress(ConnectionError):
                    while await reader.read(65536):
                        pass
        finally:
            sending.cancel()
            writer.close()


async def test_a_client_that_does_not_read_its_reply_is_disconnected():
    size = 48 << 20
    async with painted_server(limits=RequestLimits(body_s=0.4)) as (running, made), leased(running) as (http, root):
        made[0].files |= {"big": bytes(size), "small": bytes(100_000)}
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        key = http.headers["authorization"]
        writer.write(f"GET {root}/desktop/file?path=big HTTP/1.1\r\nhost: x\r\nauthorization: {key}\r\n\r\n".encode())
        await asyncio.sleep(1.5)
        taken = 0
        try:
            async with asyncio.timeout(limit(20)):
                while data := await reader.read(1 << 20):
                    taken += len(data)
        except OSError:
            pass
        finally:
            writer.close()
        assert taken < size
        assert len((await http.get(f"{root}/desktop/file?path=small")).content) == 100_000, "who takes it gets it"


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
async def test_numbers_that_are_not_finite_are_rejected(number):
    kinds = {"content-type": "application/json"}
    async with painted_server() as (running, made), leased(running) as (http, root):
        for path, body in (
            ("/desktop/run", b'{"argv": ["true"], "timeout_s": %s}'),
            ("/desktop/windows/wait", b'{"match": "x", "timeout_s": %s, "count": 1}'),
            ("/desktop/perform", b'{"ops": [{"op": "wait", "seconds": %s}], "action_id": "a"}'),
            ("/osworld/run_bash_script", b'{"script": "true", "timeout": %s}'),
            ("/osworld/execute_with_verification", b'{"command": ["true"], "max_wait_time": %s}'),
        ):
            reply = await http.post(root + path, content=body % number, headers=kinds)
            assert reply.status_code == 400, path
        reply = await http.post("/leases", content=b'{"wait_s": %s}' % number, headers=bearer(OWNER_KEY))
        assert reply.status_code == 400
        assert made[0].ran == made[0].actions == []


async def test_ids_of_a_client_are_bounded():
    async with painted_server() as (running, made), leased(running) as (http, root):
        reply = await http.post(f"{root}/desktop/perform", json={"ops": [], "action_id": "x" * 300})
        assert reply.status_code == 400
        assert "action_id" in reply.json()["message"]
        assert made[0].actions == []
        for last in ("9" * 5000, "9" * 19):
            async with http.stream("GET", f"{root}/events", headers={"last-event-id": last}) as events:
                assert events.status_code == 200


async def test_a_server_without_a_key_serves_local_programs_only():
    async with (
        painted_server(key=None) as (running, _),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}") as http,
    ):
        for site in ("cross-site", "same-site", "same-origin"):  # as an image of a page is asked for, without an origin
            assert (await http.get("/leases", headers={"sec-fetch-site": site})).status_code == 403
        for origin in ("http://attacker.example", "null"):
            assert (await http.get("/leases", headers={"origin": origin})).status_code == 403
        lease = (await http.post("/leases", json={})).json()["lease"]
        assert (await http.get(f"/leases/{lease}/osworld/platform")).text == "Linux"
        for fine in ({}, {"sec-fetch-site": "none"}):
            assert (await http.get("/leases", headers=fine)).status_code == 200
        evil = ["evil.example", "evil.example:", "127.0.0.1@evil.example", "b\u00fccher.example"]
        for host in (*evil, "ex ample", "[1", ""):
            assert (await http.get("/leases", headers={"host": host.encode("latin-1")})).status_code == 403, host


class Shaky(Painted):
    """Acts and runs, and then nobody knows: its answer is lost, or its screen is black."""

    async def perform(self, ops, *, action_id: str) -> Frame:
        await super().perform(ops, action_id=action_id)
        raise FrameError("the screen is black")

    async def run(self, argv, **named) -> CommandResult:
        done = await super().run(argv, **named)
        if argv[-2:-1] == ["-c"]:
            raise DeliveryUnknown("the answer was lost")
        return done


@pytest.mark.parametrize(
    "code", ["import pyautogui; pyautogui.press('a')", "import pyautogui\nfor n in [1]: pyautogui.press('a')"]
)
async def test_an_unknown_outcome_is_reported_as_a_failed_program(code, monkeypatch):
    async with painted_server() as (running, made), leased(running) as (http, root):
        monkeypatch.setattr(made[0], "__class__", Shaky)
        reply = await http.post(f"{root}/osworld/execute", json={"command": ["python", "-c", code], "shell": False})
        assert (reply.status_code, reply.json()["returncode"]) == (200, 1)
        assert len(made[0].actions) + sum(argv[-2:] == ["-c", code] for argv in made[0].ran) == 1


async def test_an_internal_error_is_not_attributed_to_the_guest(monkeypatch):
    async def broken(held, request):
        raise KeyError("a mistake of ours")

    async with painted_server() as (running, _), leased(running) as (http, root):
        monkeypatch.setattr(Painted, "observe", broken)
        assert (await http.get(f"{root}/osworld/cursor_position")).status_code == 503


async def test_an_unclaimed_lease_expires_soon():
    now = 1000.0
    async with painted_pool(2, []) as pool:
        book = ActiveLeases(pool, idle_s=600, clock=lambda: now)
        (lost, _), (used, _) = await book.acquire(None, 30), await book.acquire(None, 30)
        for held in (lost, used):
            book.release_unclaimed(held)
        with book.using(used):
            now += UNCLAIMED_S + 1
        await book.expire_idle()
        assert list(book) == [used], "one that is used after all is as any other"
        await book.close()


async def test_a_client_that_disconnects_while_it_waits_holds_its_lease_for_a_minute_at_most():
    async with painted_server() as (running, _), leased(running) as (http, root):
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        head = f"POST /leases HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {OWNER_KEY}\r\nx-deskhand-request: a\r\n"
        writer.write(f"{head}content-length: 2\r\n\r\n{{}}".encode())
        await asyncio.sleep(0.2)
        writer.close()
        await writer.wait_closed()
        await http.delete(root)
        await wait_until(lambda: list(running.leases))
        (held,), max_idle_s = running.leases, running.leases.idle_s - UNCLAIMED_S - 5
        await wait_until(lambda: running.leases.now() - held.last_used >= max_idle_s)


async def test_a_recording_that_ends_while_it_starts_is_complete_and_stops():
    async with painted_server() as (running, made), leased(running) as (http, root):
        going, looked = asyncio.Event(), Painted.observe

        class Slow(Painted):
            async def observe(self) -> Frame:
                await going.wait()
                return await looked(self)

        made[0].__class__ = Slow
        beginning = asyncio.create_task(http.post(f"{root}/osworld/start_recording"))
        (held,) = running.leases
        await wait_until(lambda: held.recording is not None)
        recording = held.recording
        ending = asyncio.create_task(http.post(f"{root}/osworld/end_recording"))
        await wait_until(lambda: held.recording is None)
        going.set()
        assert (await beginning).status_code == 200
        film = await ending
        assert (film.status_code, film.content[4:8]) == (200, b"ftyp")
        assert recording._task is None
