"""Deskhand's own dialect: a desktop of a bridge is a desktop like any other, over connections that fail too."""

from __future__ import annotations

import asyncio
import json

import httpx2
import numpy as np
import pytest
import zstandard
from patience import limit
from server_client import OWNER_KEY, SCREEN, LossyNetwork, bearer, bridge, painted_server, wait_until

from deskhand.actions.ops import Click, Drag, Key, Move, Point, Type, Wait, screen_px
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop import frame_codec
from deskhand.desktop.base import Desktop, DesktopSpec, Frame
from deskhand.desktop.op_budgets import op_budget_s
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.errors import AgentError, ConfigError, DeliveryUnknown, FrameError, InfrastructureError
from deskhand.tasks.guest_files import read_folder

QUICK = RemoteTimeouts(connect_s=2, read_s=5, max_attempts=4, initial_backoff_s=0.02)
PATIENT = RemoteTimeouts(connect_s=2, read_s=5, max_attempts=12, initial_backoff_s=0.005)


def at(x: float, y: float) -> Point:
    return Point(x, y, screen_px(SCREEN.width, SCREEN.height))


def pool_of(running, transport: httpx2.AsyncBaseTransport | None = None, **settings) -> ServerPool:
    address = f"http://127.0.0.1:{running.port}"
    return ServerPool(address, OWNER_KEY, spec=SCREEN, transport=transport, **{"timeouts": QUICK, **settings})


async def test_a_desktop_of_a_server_implements_the_whole_interface():
    async with bridge() as running, pool_of(running) as pool:
        lease = await pool.lease()
        desktop = lease.desktop
        assert isinstance(desktop, Desktop)
        (held,) = running.leases
        first = await desktop.observe()
        here = await held.desktop.observe()
        assert first.size == (320, 240)
        assert (first.bgrx[:, :, :3] == here.bgrx[:, :, :3]).all()
        moved = await desktop.perform([Move(at(100, 90))], action_id="a")
        assert moved.cursor == (100, 90)
        assert moved.changed_bbox is not None
        assert (moved.bgrx[:, :, :3] == (await held.desktop.observe()).bgrx[:, :, :3]).all()
        assert moved.content_hash == (await desktop.observe()).content_hash != first.content_hash
        await desktop.push("a/b.txt", b"\x00text")
        assert await desktop.pull("a/b.txt") == b"\x00text"
        assert await desktop.listdir("a") == ["b.txt"]
        done = await desktop.run(["sh", "-c", "echo $NAME; pwd >&2; exit 3"], env={"NAME": "x"}, cwd="/tmp")
        assert (done.returncode, done.stdout, done.stderr) == (3, b"x\n", b"/tmp\n")
        assert await desktop.launch(["xterm", "-geometry", "30x8", "-e", "cat"]) > 0
        (window,) = await desktop.wait_window("xterm")
        placed = await desktop.place_window(window, 20, 40)
        assert (placed.x, placed.y) == (20, 40)
        await desktop.activate_window(placed)
        await desktop.close_window(placed)
        for _ in range(round(limit(100))):
            if not await desktop.windows():
                break
            await asyncio.sleep(0.05)
        assert await desktop.windows() == []
        assert await desktop.clipboard() is None
        await desktop.accessibility_tree()
        fresh = await desktop.reset(DesktopSpec("dark", 400, 300))
        assert fresh.size == (400, 300)
        assert await desktop.listdir(".") == await held.desktop.listdir(".")
        await pool.release(lease)
        await pool.release(lease)
        assert list(running.leases) == []
        with pytest.raises(InfrastructureError, match="closed"):
            await desktop.observe()


async def test_any_name_of_a_guests_file_reads_as_on_a_local_desktop():
    names = [b"\xff", b"two\nlines", b"x" * 255, "caf\u00e9".encode(), b"plain"]
    async with bridge() as running, pool_of(running) as pool:
        desktop = (await pool.lease()).desktop
        (held,) = running.leases
        script = f"import os; os.mkdir('a'); [open(b'a/' + name, 'wb').close() for name in {names!r}]"
        assert (await desktop.run(["python3", "-c", script])).returncode == 0
        assert await desktop.listdir("a") == await held.desktop.listdir("a")
        assert await desktop.listdir("a") == sorted(["\\xff", "two\nlines", "x" * 255, "caf\u00e9", "plain"])
        for each in (desktop, held.desktop):
            found = await read_folder(each, "a")
            assert {name: data for name, data in found.items() if data is None} == {"\\xff": None}
            assert len(found) == len(names)


async def test_over_tls_a_client_trusts_only_the_given_authority(certificate, monkeypatch):
    chain, private = certificate
    async with painted_server(certificate=chain, certificate_key=private) as (running, made):
        address, screen = f"https://127.0.0.1:{running.port}", DesktopSpec("plain", 64, 48)
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        async with ServerPool(address, OWNER_KEY, spec=screen, timeouts=QUICK) as stranger:
            with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
                await stranger.lease()
        monkeypatch.setenv("SSL_CERT_FILE", str(chain))
        async with ServerPool(address, OWNER_KEY, spec=screen, timeouts=QUICK) as pool:
            lease = await pool.lease()
            await lease.desktop.perform([Move(Point(5, 5, screen_px(64, 48)))], action_id="1")
        assert made[0].actions == ["1"]


async def test_errors_of_the_desktop_arrive_as_themselves():
    async with bridge(2) as running, pool_of(running) as pool:
        desktop = (await pool.lease()).desktop
        off_screen = [Click(Point(5000, 1, screen_px(9000, 9000)))] * 2
        for kind, call in (
            (AgentError, desktop.perform([*off_screen, Key(("nokey",))], action_id="k")),
            (AgentError, desktop.perform([Click(at(400, 1))], action_id="p")),
            (FileNotFoundError, desktop.pull("nothing")),
            (FileNotFoundError, desktop.listdir("../..")),
            (ConfigError, desktop.launch(["nosuchprogram"])),
            (ConfigError, desktop.run([])),
            (InfrastructureError, desktop.wait_window("nothing", timeout_s=0.1)),
        ):
            with pytest.raises(kind):
                await call
        await desktop.run(["ln", "-s", "/etc/passwd", "link"])
        with pytest.raises(PermissionError):
            await desktop.push("link", b"x")
        with pytest.raises(ConfigError, match="screen size"):
            await desktop.reset(DesktopSpec("plain", 9, 9))
        with pytest.raises(ConfigError, match="no such"):
            await pool.lease(DesktopSpec("no such"))


async def test_lost_replies_neither_repeat_nor_lose_an_action():
    network = LossyNetwork()
    async with bridge() as running, pool_of(running, network, timeouts=PATIENT) as pool:
        desktop = (await pool.lease()).desktop
        await desktop.launch(["xterm", "-geometry", "40x12+0+0", "-e", "sh", "-c", "cat > typed.txt"])
        await desktop.wait_window("xterm")
        network.lose_reply, network.lose_request, network.gateway_error = 0.2, 0.1, 0.05
        typed = ""
        for index in range(40):
            text = f"{index:02}"
            frame = await desktop.perform([Type(text)], action_id=f"type {index}")
            assert frame.size == (320, 240)
            await desktop.run(["sh", "-c", f"echo {text} >> ran.txt"])
            typed += text
        network.lose_reply = network.lose_request = network.gateway_error = 0.0
        await desktop.perform([Key(("enter",)), Key(("ctrl", "d"))], action_id="end")
        assert network.lost > 20
        assert (await desktop.pull("typed.txt")).decode() == typed + "\n"
        assert (await desktop.pull("ran.txt")).decode().split() == [f"{index:02}" for index in range(40)]


async def test_without_a_reply_the_error_tells_whether_the_action_may_have_been_performed():
    network = LossyNetwork()
    async with bridge() as running, pool_of(running, network) as pool:
        desktop = (await pool.lease()).desktop
        network.lose_reply = 1.0
        with pytest.raises(DeliveryUnknown, match="no reply in 4 attempts"):
            await desktop.perform([Move(at(5, 5))], action_id="m")
        with pytest.raises(InfrastructureError) as error:
            await desktop.observe()
        assert not isinstance(error.value, DeliveryUnknown)
        network.lose_reply, network.lose_request = 0.0, 1.0
        with pytest.raises(InfrastructureError) as error:
            await desktop.perform([Move(at(6, 6))], action_id="n")
        assert not isinstance(error.value, DeliveryUnknown)
        network.lose_request = 0.0
        assert (await desktop.observe()).cursor == (5, 5)


async def test_a_client_waits_for_an_action_as_long_as_the_desktop_may_take():
    class TimedNetwork(LossyNetwork):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            limits_s[request.url.path.rpartition("/")[2]] = request.extensions["timeout"]["read"]
            return await super().handle_async_request(request)

    limits_s: dict[str, float] = {}
    async with painted_server() as (running, _), pool_of(running, TimedNetwork()) as pool:
        desktop = (await pool.lease()).desktop
        ops = Type("x"), Type("1" * 500), Click(at(5, 5), modifiers=("ctrl",)), Drag((at(0, 0), at(300, 0)))
        for index, op in enumerate(ops):
            await desktop.perform([op], action_id=f"{index}")
            assert limits_s["perform"] == QUICK.read_s + op_budget_s(op, SCREEN.width, SCREEN.height)


async def test_a_client_of_a_released_lease_reaches_nothing():
    async with bridge() as running, pool_of(running) as pool:
        lease = await pool.lease()
        (held,) = running.leases
        await running.leases.release(held, "test")
        for call in (lease.desktop.observe(), lease.desktop.perform([Wait(0)], action_id="x")):
            with pytest.raises(frame_codec.RemoteLeaseExpired):
                await call
        again = await pool.lease()
        assert again.epoch > lease.epoch
        address = f"/leases/{next(iter(running.leases)).id}/desktop/frame"
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", headers=bearer(OWNER_KEY)) as http:
            fenced = await http.get(address, headers={frame_codec.EPOCH_HEADER: str(lease.epoch)})
            assert (fenced.status_code, fenced.json()["error"]) == (409, "fenced")


async def test_a_lease_is_renewed_until_its_client_ends():
    idle_s = limit(0.6)
    async with bridge(idle_s=idle_s) as running:
        pool = pool_of(running)
        desktop = (await pool.lease()).desktop
        await asyncio.sleep(2.5 * idle_s)
        assert (await desktop.observe()).size == (320, 240)
        for _, renewing in pool._active.values():
            renewing.cancel()
        await wait_until(lambda: not list(running.leases))
        await pool.close()


async def test_a_lease_has_a_client_of_its_own_which_is_closed_with_it():
    async with bridge(2) as running, pool_of(running) as pool:
        leases = [await pool.lease(), await pool.lease()]
        links = [pool.transport.client_for(lease.desktop.sandbox) for lease in leases]
        assert len({id(link.http) for link in links}) == 2
        for lease in leases:
            assert (await lease.desktop.observe()).size == (320, 240)
            await pool.release(lease)
        assert all(link.http.is_closed for link in links)
        with pytest.raises(ConfigError):
            await pool.lease(DesktopSpec("no such"))
        assert pool.gate.desktops.held == 0


async def test_a_lease_released_during_an_action_fails_that_action():
    async with bridge() as running, pool_of(running) as pool:
        lease = await pool.lease()
        acting = asyncio.create_task(lease.desktop.perform([Wait(5)], action_id="w"))
        await asyncio.sleep(0.3)
        await pool.release(lease)
        with pytest.raises(InfrastructureError):
            await acting


async def test_events_are_ordered_and_resume_after_a_disconnect():
    async with bridge() as running, pool_of(running) as pool:
        lease = await pool.lease()
        desktop, (held,) = lease.desktop, running.leases
        client, path = pool.transport.client_for(desktop.sandbox), f"/leases/{held.id}/events"
        seen = []

        async def watch(after: int, until: str) -> int:
            headers = client.headers | {"last-event-id": str(after)}
            async with client.http.stream("GET", path, headers=headers, timeout=limit(20)) as reply:
                async for event in httpx2.EventSource(reply):
                    action = json.loads(event.data).get("action_id")
                    seen.append((int(event.id), event.event, action))
                    if until in (action, event.event):
                        return int(event.id)
            raise AssertionError("the stream ended early")

        await desktop.perform([Wait(0)], action_id="one")
        last = await watch(0, "one")
        await desktop.perform([Wait(0)], action_id="two")
        watching = asyncio.create_task(watch(last, "released"))
        await asyncio.sleep(0.2)
        await desktop.perform([Wait(0)], action_id="three")
        await running.leases.release(held, "test")
        await watching
        performed = [(number, "performed", action) for number, action in ((2, "one"), (3, "two"), (4, "three"))]
        assert seen == [(1, "leased", None), *performed, (5, "released", None)]


def frame_of(pixels: np.ndarray, name: str) -> Frame:
    return Frame(pixels, 3, name, 12.5, "quiet", None, (1, 2))


def test_a_frame_is_sent_as_a_delta_and_a_broken_one_is_rejected():
    generator = np.random.default_rng(3)
    before = generator.integers(0, 255, (40, 60, 4), np.uint8)
    after = before.copy()
    after[10:12, 20:25] ^= 255
    base, frame = frame_of(before, "a"), frame_of(after, "b")
    header, body = frame_codec.encode_frame(frame, base)
    assert len(body) == 2 * 5 * 4
    got = frame_codec.decode_frame(header, body, base)
    assert (got.bgrx == after).all()
    assert (got.content_hash, got.cursor, got.settle_ms) == ("b", (1, 2), 12.5)
    same, nothing = frame_codec.encode_frame(frame_of(before, "a"), base)
    assert nothing == b""
    assert (frame_codec.decode_frame(same, nothing, base).bgrx == before).all()
    whole, all_of_it = frame_codec.encode_frame(frame, None)
    assert (frame_codec.decode_frame(whole, all_of_it, None).bgrx == after).all()
    for broken in (
        (header, body[:-1], base),
        (header, body, None),
        (header, body, frame),
        ("{}", body, base),
        (None, b"", base),
        (whole, all_of_it[:-4], None),
        (header.replace("[20,10,25,12]", "[20,10,2500,12]"), body, base),
    ):
        with pytest.raises(FrameError):
            frame_codec.decode_frame(*broken)


def test_a_frame_is_compressed_if_smaller_and_a_wrong_size_is_rejected():
    plain = np.full((40, 60, 4), 200, np.uint8)
    header, body = frame_codec.encode_frame(frame_of(plain, "a"), None)
    assert len(body) < 200
    assert (frame_codec.decode_frame(header, body, None).bgrx == plain).all()
    bomb = zstandard.ZstdCompressor().compress(bytes(100_000_000))
    for broken in (body[:-3], bomb, b"", plain.tobytes()):
        with pytest.raises(FrameError):
            frame_codec.decode_frame(header, broken, None)


def test_the_delta_of_the_next_frame_is_its_changed_box():
    before = np.full((40, 60, 4), 200, np.uint8)
    after = before.copy()
    after[5:9, 7:12] = 3
    base = Frame(before, 8, "a", 0.0, "quiet", None, (1, 2))
    header, body = frame_codec.encode_frame(Frame(after, 9, "b", 0.0, "quiet", (7, 5, 12, 9), (1, 2)), base)
    assert json.loads(header)["box"] == [7, 5, 12, 9]
    assert (frame_codec.decode_frame(header, body, base).bgrx == after).all()
    nothing = frame_codec.encode_frame(Frame(before, 9, "a", 0.0, "quiet", None, (1, 2)), base)
    assert (frame_codec.decode_frame(*nothing, base).bgrx == before).all()


@pytest.mark.parametrize("address", ["127.0.0.1:8700", "ftp://x", "http://user:secret@host:1", "http://"])
def test_an_invalid_url_is_rejected_without_showing_it(address):
    with pytest.raises(ConfigError) as error:
        ServerPool(address)
    assert "secret" not in str(error.value)
