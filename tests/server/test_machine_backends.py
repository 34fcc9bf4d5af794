"""A desktop server in front of machines that run OSWorld's server: both protocols."""

from __future__ import annotations

from fake_osworld import FakeOsworld
from server_client import OWNER_KEY
from serving import on_a_port

from deskhand.actions.ops import Click, Point, Type, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.factory import build_machine_pool
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.remote.osworld_server import OsworldServer
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.server.process import ServerConfig, serve_pool

SCREEN = DesktopSpec("plain", 320, 240)


async def test_a_server_leases_machines_like_local_desktops(tmp_path):
    fake = FakeOsworld(tmp_path / "vm")
    book = LeaseStore(tmp_path / "book.sqlite")
    async with on_a_port(fake.app) as address:
        machines = build_machine_pool([address], "osworld", SCREEN, book, skip_reset=True)
        async with machines as own, serve_pool(own, ServerConfig(port=0, admin_key=OWNER_KEY)) as running:
            at = f"http://127.0.0.1:{running.port}"
            async with ServerPool(at, OWNER_KEY, spec=SCREEN) as pool, ServerPool(at, OWNER_KEY) as other:
                first = await pool.lease()
                frame = await first.desktop.perform(
                    [Click(Point(20, 30, screen_px(320, 240))), Type("é")], action_id="1"
                )  # fmt: skip
                assert frame.size == (320, 240)
                assert fake.guest.text == "é"
                assert ("clicked", "left", 20, 30, ()) in fake.guest.journal
                assert (await first.desktop.run(["sh", "-c", "echo $((6*7))"])).stdout == b"42\n"
                await first.desktop.push("a.txt", b"x")
                assert await first.desktop.pull("a.txt") == b"x"
                (held,) = running.leases
                server = OsworldServer(other.transport.client)
                await other.transport.client.move(f"{at}/leases/{held.id}/osworld")
                assert await server.screen_size() == (320, 240)
                await pool.release(first)
                second = await pool.lease()
                assert second.epoch > first.epoch
