"""Machines that are there already, and pools from settings."""

from __future__ import annotations

import asyncio

import pytest
from fake_osworld import FakeOsworld
from fake_waa import FakeWaa
from patience import limit
from pydantic import ValidationError
from serving import on_a_port

from deskhand.actions.ops import KeyDown, MouseDown, Point, screen_px
from deskhand.config.schema import DesktopConfig, RemoteTimeouts
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.factory import build_machine_pool, build_remote_pool
from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.reset_hooks import ResetCommand
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.desktop.remote.waa_desktop import BASELINES_FILE
from deskhand.errors import ConfigError, InfrastructureError


class Machine:
    """A desktop of which only the reset is of interest."""

    def __init__(self, address: str, fails: set[str]) -> None:
        self.address, self._fails = address, fails
        self.closed = False

    async def reset(self, spec: DesktopSpec) -> None:
        if self.address in self._fails:
            raise InfrastructureError(f"{self.address} does not come back")

    async def close(self) -> None:
        self.closed = True


def pool_of(fails: set[str], now: list[float], names: str = "abc") -> MachinePool:
    def make(address: str):
        return Machine(address, fails)

    return MachinePool(list(names), make, clock=lambda: now[0], quarantine_s=30.0)  # type: ignore[arg-type]


async def test_a_machine_has_one_lease_and_a_failing_one_is_quarantined():
    now, fails = [0.0], {"a"}
    async with pool_of(fails, now) as pool:
        first, second = await pool.lease(), await pool.lease()
        assert [lease.desktop.address for lease in (first, second)] == ["b", "c"]  # type: ignore[attr-defined]
        third = asyncio.create_task(pool.lease())
        await asyncio.sleep(0.05)
        assert not third.done(), "nobody gets a machine that is leased or set aside"
        await pool.release(first)
        await pool.release(first)
        got = await third
        assert got.desktop.address == "b"  # type: ignore[attr-defined]
        assert first.desktop.closed  # type: ignore[attr-defined]
        fails.clear()
        now[0] = 31.0
        again = await pool.lease()
        assert again.desktop.address == "a"  # type: ignore[attr-defined]
        assert len({lease.epoch for lease in (first, second, got, again)}) == 4


async def test_without_a_usable_machine_the_last_error_is_reported():
    now, fails = [0.0], set("abc")
    pool = pool_of(fails, now)
    with pytest.raises(InfrastructureError, match="c does not come back"):
        await pool.lease()
    await pool.close()
    for wrong in ("", "aa"):
        with pytest.raises(ConfigError):
            pool_of(fails, now, wrong)


async def test_pools_are_built_from_settings_and_keys_from_variables_alone():
    spec, lot = DesktopSpec(), QuotaManager()

    def made(environment: dict[str, str] | None = None, **settings):
        return build_remote_pool(DesktopConfig(**settings), spec, lot, environment=environment or {})

    times = RemoteTimeouts(step_s=7.0)
    bridge = made({"DESKHAND_SERVER_API_KEY": "k" * 20}, backend="server", urls=("http://a:1",), timeouts=times)
    assert isinstance(bridge, ServerPool)
    assert bridge.transport.client.headers == {"authorization": "Bearer " + "k" * 20}
    assert bridge.transport.client.timeouts.step_s == 7.0
    variables = {"OSWORLD_SANDBOX_ENDPOINT": "https://g.example", "OSWORLD_SANDBOX_TOKEN": "t"}
    gateway = made(variables, backend="sandbox")
    assert isinstance(gateway, SandboxPool)
    machines = made(backend="waa", urls=("http://a:5000", "http://b:5000"), qemu_monitor_port=7100)
    assert isinstance(machines, MachinePool)
    for wrong, message in (
        ({"backend": "server"}, "needs one URL"),
        ({"backend": "server", "urls": ("http://a", "http://b")}, "needs one URL"),
        ({"backend": "sandbox"}, "OSWORLD_SANDBOX_ENDPOINT"),
        ({"backend": "osworld"}, "one URL per machine"),
        ({"backend": "osworld", "urls": ("ftp://a",)}, "http://host"),
        ({"backend": "server", "urls": ("http://a",), "api_key_env": "NOT_SET"}, "NOT_SET"),
    ):
        with pytest.raises(ConfigError, match=message):
            made(**wrong)
    for pool in (bridge, gateway, machines):
        await pool.close()


async def test_a_machine_whose_connection_cannot_be_closed_is_leased_again():
    now: list[float] = [0.0]
    async with pool_of(set(), now, "a") as pool:
        lease = await pool.lease()

        async def broken() -> None:
            raise asyncio.CancelledError

        lease.desktop.close = broken  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await pool.release(lease)
        async with asyncio.timeout(limit(5)):
            assert (await pool.lease()).desktop.address == "a"  # type: ignore[attr-defined]


async def test_a_desktop_whose_reset_failed_is_closed():
    made: list[Machine] = []

    def make(address: str):
        made.append(Machine(address, {"a", "b"}))
        return made[-1]

    pool = MachinePool(["a", "b"], make)  # type: ignore[arg-type]
    with pytest.raises(InfrastructureError, match="b does not come back"):
        await pool.lease()
    assert [machine.closed for machine in made] == [True, True]
    await pool.close()


async def test_leftovers_of_an_episode_do_not_become_the_baseline(tmp_path):
    fake = FakeWaa(tmp_path / "vm")
    times = RemoteTimeouts(connect_s=1, read_s=2, max_attempts=1, initial_backoff_s=0.01)

    def pool_on(address: str) -> MachinePool:
        screen = DesktopSpec("plain", 320, 240)
        return build_machine_pool([address], "waa", screen, None, skip_reset=False, timeouts=times, run_dir=tmp_path)

    async with on_a_port(fake.app) as address:
        pool = pool_on(address)
        lease = await pool.lease()
        fake.guest.windows.append("Do you want to save?")
        fake.dirty = ["Do you want to save?"]
        await pool.release(lease)
        with pytest.raises(InfrastructureError, match=f"Do you want to save.*{BASELINES_FILE}"):
            await pool.lease()
        await pool.close()
        again = pool_on(address)
        with pytest.raises(InfrastructureError, match="Do you want to save"):
            await again.lease()
        await again.close()
        (tmp_path / BASELINES_FILE).unlink()
        fresh = pool_on(address)
        await fresh.release(await fresh.lease())
        await fresh.close()
    (tmp_path / BASELINES_FILE).write_text("{")
    with pytest.raises(ConfigError, match="remove it"):
        pool_on("http://127.0.0.1:1")


@pytest.mark.parametrize("make", [FakeOsworld, FakeWaa])
async def test_pressed_keys_and_buttons_are_released_before_the_next_episode(make, tmp_path):
    fake = make(tmp_path / "vm")
    kind = "waa" if make is FakeWaa else "osworld"
    async with on_a_port(fake.app) as address:
        pool = build_machine_pool([address], kind, DesktopSpec("plain", 320, 240), None, skip_reset=True)
        lease = await pool.lease()
        await lease.desktop.perform(
            [KeyDown("ctrl"), MouseDown(Point(5, 6, screen_px(320, 240)), "right")], action_id="1"
        )
        assert (fake.guest.held, fake.guest.buttons) == (["ctrl"], {"right"})
        await pool.release(lease)
        lease = await pool.lease()
        assert (fake.guest.held, fake.guest.buttons) == ([], set())
        assert fake.guest.pointer == (160, 120), "where it stands is no doing of the episode that begins"
        ups = [entry for entry in fake.guest.journal if entry[0] == "up"]
        assert [entry[1] for entry in ups] == ["right"], "a button that nobody holds is left alone"
        await pool.release(lease)
        await pool.close()


async def test_a_rebooted_machine_is_cleaned_and_an_unrestored_disk_is_an_error(tmp_path):
    fake, said = FakeWaa(tmp_path / "vm"), []
    times = RemoteTimeouts(connect_s=1, read_s=2, max_attempts=1, initial_backoff_s=0.01)

    async def monitor(reader, writer):
        writer.write(b"(qemu) ")
        said.append(await reader.readline())
        fake.guest.windows[:] = ["Program Manager", f"OneDrive {len(said)}"]
        writer.write(b"(qemu) ")
        await writer.drain()
        writer.close()

    async with on_a_port(fake.app) as address, await asyncio.start_server(monitor, "127.0.0.1", 0) as server:
        port, screen = server.sockets[0].getsockname()[1], DesktopSpec("plain", 320, 240)
        for settings in ({"qemu_monitor_port": port}, {"qemu_monitor_port": None, "reset_command": ["true"]}):
            pool = build_machine_pool([address], "waa", screen, None, skip_reset=False, timeouts=times, **settings)
            lease = await pool.lease()
            await lease.desktop.push("Desktop/left.txt", b"by an episode")
            await pool.release(lease)
            if settings["qemu_monitor_port"]:
                lease = await pool.lease()
                assert await lease.desktop.listdir("Desktop") == [], "the disk outlives the reset button"
                await pool.release(lease)
            else:
                with pytest.raises(InfrastructureError, match=r"files: .*left\.txt"):
                    await pool.lease()
            await pool.close()
    assert said == [b"system_reset\n"] * 2


async def test_a_reset_command_may_print_the_new_url(tmp_path):
    fake, told = FakeOsworld(tmp_path / "vm"), tmp_path / "told"
    async with on_a_port(fake.app) as address:
        script = f"echo {{address}} {{host}} {{port}} >> {told}; echo starting; echo {address}"
        restoring = f"rm -rf {tmp_path}/vm/home/.cache; {script}"
        settings = {"skip_reset": False, "timeouts": RemoteTimeouts(max_attempts=1)}
        screen = DesktopSpec("plain", 320, 240)

        def pool_by(words: list[str]) -> MachinePool:
            return build_machine_pool(["http://vm.test:5000"], "osworld", screen, None, reset_command=words, **settings)

        pool = pool_by(["sh", "-c", restoring])
        for count in (1, 2):
            lease = await pool.lease()
            assert lease.desktop.label == address
            assert told.read_text() == "http://vm.test:5000 vm.test 5000\n" * count
            await pool.release(lease)
        await pool.close()
        idle = pool_by(["sh", "-c", script])
        await idle.release(await idle.lease())
        with pytest.raises(InfrastructureError, match="not reset, although"):
            await idle.lease()
        await idle.close()
        failing = pool_by(["sh", "-c", "echo no such snapshot >&2; exit 3"])
        with pytest.raises(InfrastructureError, match="exit code 3: no such snapshot"):
            await failing.lease()
        await failing.close()
        with pytest.raises(ConfigError, match="program no-such-command not found"):
            pool_by(["no-such-command"])
    slow = ResetCommand(["sleep", "60"], "http://vm.test:5000", timeout_s=0.1)
    with pytest.raises(InfrastructureError, match=r"timed out after 0.1 s"):
        await slow.reset()


def test_mutually_exclusive_resets_are_rejected():
    for settings, message in (
        ({"backend": "osworld", "reset_command": ("a",), "skip_reset": True}, "mutually exclusive"),
        ({"backend": "waa", "reset_command": ("a",), "qemu_monitor_port": 7100}, "mutually exclusive"),
        ({"backend": "server", "reset_command": ("a",)}, "is not used by backend server"),
    ):
        with pytest.raises(ValidationError, match=message):
            DesktopConfig(**settings)


async def test_the_leases_of_a_machine_share_its_connections(tmp_path):
    fake = FakeOsworld(tmp_path / "vm")
    async with on_a_port(fake.app) as address:
        pool = build_machine_pool([address], "osworld", DesktopSpec("plain", 320, 240), None, skip_reset=True)
        clients = []
        for _ in range(3):
            lease = await pool.lease()
            clients.append(lease.desktop.client)  # type: ignore[attr-defined]
            await pool.release(lease)
        assert len({id(each.http) for each in clients}) == 1
        with pytest.raises(InfrastructureError, match="the client is closed"):
            await clients[0].send("GET", "/screenshot", repeatable=True)
        await pool.close()
        assert clients[0].http.is_closed
