"""Machines that are there already, and pools from settings."""

from __future__ import annotations

import asyncio

import pytest

from deskhand.config import DesktopSection
from deskhand.desktop.base import Template
from deskhand.desktop.bridge import BridgePool
from deskhand.desktop.gateway import GatewayPool
from deskhand.desktop.machines import MachinePool
from deskhand.desktop.making import remote_pool
from deskhand.desktop.remote.parking import ParkingLot
from deskhand.errors import ConfigError, InfrastructureError


class Machine:
    """A desktop of which only the reset is of interest."""

    def __init__(self, address: str, fails: set[str]) -> None:
        self.address, self._fails = address, fails
        self.closed = False

    async def reset(self, template: Template) -> None:
        if self.address in self._fails:
            raise InfrastructureError(f"{self.address} does not come back")

    async def close(self) -> None:
        self.closed = True


def pool_of(fails: set[str], now: list[float], names: str = "abc") -> MachinePool:
    def make(address: str):
        return Machine(address, fails)

    return MachinePool(list(names), make, clock=lambda: now[0], aside_s=30.0)  # type: ignore[arg-type]


async def test_a_machine_is_used_by_one_lease_and_one_that_fails_is_set_aside():
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


async def test_when_no_machine_can_be_used_the_last_reason_is_said():
    now, fails = [0.0], set("abc")
    pool = pool_of(fails, now)
    with pytest.raises(InfrastructureError, match="c does not come back"):
        await pool.lease()
    await pool.close()
    for wrong in ("", "aa"):
        with pytest.raises(ConfigError):
            pool_of(fails, now, wrong)


async def test_pools_are_made_from_settings_and_keys_from_variables_alone():
    template, lot = Template(), ParkingLot()

    def made(environment: dict[str, str] | None = None, **settings):
        section = DesktopSection(**settings)
        return remote_pool(section.kind, section, template, lot, environment or {})  # type: ignore[arg-type]

    bridge = made({"DESKHAND_BRIDGE_KEY": "k" * 20}, kind="bridge", addresses=("http://a:1",), step_s=7.0)
    assert isinstance(bridge, BridgePool)
    assert bridge.link.headers == {"authorization": "Bearer " + "k" * 20}
    assert bridge.link.timeouts.step_s == 7.0
    variables = {"OSWORLD_SANDBOX_ENDPOINT": "https://g.example", "OSWORLD_SANDBOX_TOKEN": "t"}
    gateway = made(variables, kind="gateway")
    assert isinstance(gateway, GatewayPool)
    machines = made(kind="waa", addresses=("http://a:5000", "http://b:5000"), monitor_port=7100)
    assert isinstance(machines, MachinePool)
    for wrong, message in (
        ({"kind": "bridge"}, "one address"),
        ({"kind": "bridge", "addresses": ("http://a", "http://b")}, "one address"),
        ({"kind": "gateway"}, "OSWORLD_SANDBOX_ENDPOINT"),
        ({"kind": "osworld"}, "an address each"),
        ({"kind": "osworld", "addresses": ("ftp://a",)}, "http://host"),
        ({"kind": "bridge", "addresses": ("http://a",), "key_variable": "NOT_SET"}, "NOT_SET"),
    ):
        with pytest.raises(ConfigError, match=message):
            made(**wrong)
    for pool in (bridge, gateway, machines):
        await pool.close()


async def test_a_machine_whose_connection_cannot_be_closed_is_lent_again_all_the_same():
    now: list[float] = [0.0]
    async with pool_of(set(), now, "a") as pool:
        lease = await pool.lease()

        async def broken() -> None:
            raise asyncio.CancelledError

        lease.desktop.close = broken  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await pool.release(lease)
        async with asyncio.timeout(5):
            assert (await pool.lease()).desktop.address == "a"  # type: ignore[attr-defined]


async def test_what_was_made_for_a_reset_that_failed_is_closed():
    made: list[Machine] = []

    def make(address: str):
        made.append(Machine(address, {"a", "b"}))
        return made[-1]

    pool = MachinePool(["a", "b"], make)  # type: ignore[arg-type]
    with pytest.raises(InfrastructureError, match="b does not come back"):
        await pool.lease()
    assert [machine.closed for machine in made] == [True, True]
    await pool.close()
