"""`deskhand doctor --desktop`: every layer is checked, and the first that fails names a fix."""

from __future__ import annotations

import asyncio

import pytest
from fake_osworld import FakeOsworld
from fake_waa import FakeEvaluate, FakeWaa
from patience import limit
from server_client import OWNER_KEY, bridge
from serving import on_a_port

from deskhand.doctor import check_desktop as check_desktop_module
from deskhand.doctor.check_desktop import check_desktop
from deskhand.errors import ConfigError

LAYERS = ["reach", "desktop", "frame", "input", "file", "judge"]


async def test_a_working_desktop_server_passes_every_layer():
    async with bridge(1) as running:
        findings = await check_desktop(f"http://127.0.0.1:{running.port}", OWNER_KEY)
        assert [(each.name, each.ok) for each in findings] == [(name, True) for name in LAYERS], findings
        assert list(running.leases) == [], "the desktop was given back"
        refused = await check_desktop(f"http://127.0.0.1:{running.port}", "a-wrong-key-of-the-tests")
        assert [(each.name, each.ok) for each in refused] == [("reach", True), ("desktop", False)]
        assert "key" in refused[-1].fix
        assert "a-wrong-key" not in str(refused)


async def test_machines_of_both_benchmarks_pass_and_what_is_broken_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(check_desktop_module, "WAIT_S", 3.0)
    for fake, kind in ((FakeOsworld(tmp_path / "a"), "osworld"), (FakeWaa(tmp_path / "b"), "waa")):
        evaluate = FakeEvaluate(fake.guest)
        async with on_a_port(fake.app) as address, on_a_port(evaluate.app) as judge:
            other = judge if kind == "waa" else None
            findings = await check_desktop(address, evaluate_url=other)
            assert all(each.ok for each in findings), findings
            assert [each.name for each in findings] == LAYERS + (["judge"] if other else [])
            assert findings[0].detail.startswith(kind)
            with monkeypatch.context() as busy:
                busy.setattr(fake.guest, "picture", lambda: b"busy")
                broken = await check_desktop(address)
            assert not broken[-1].ok
            assert broken[-1].fix

            def deaf(modules=fake.guest.modules):
                found = modules()
                found["pyautogui"].moveTo = lambda *arguments, **named: None
                return found

            fake.guest.modules = deaf
            broken = await check_desktop(address)
            assert [(each.name, each.ok) for each in broken][-1] == ("input", False)
            assert "session" in broken[-1].fix
    findings = await check_desktop("http://127.0.0.1:9")
    assert [(each.name, each.ok) for each in findings] == [("reach", False)]
    with pytest.raises(ConfigError):
        await check_desktop("desktop.example")


async def test_the_wait_for_a_hanging_server_is_limited(tmp_path, monkeypatch):
    short = check_desktop_module.RemoteTimeouts(
        connect_s=1, read_s=0.3, step_s=2, max_attempts=1, initial_backoff_s=0.01
    )
    monkeypatch.setattr(check_desktop_module, "TIMEOUTS", short)
    monkeypatch.setattr(check_desktop_module, "WAIT_S", 1.0)
    fake = FakeWaa(tmp_path)
    async with on_a_port(fake.app) as address:
        fake.running.clear()
        async with asyncio.timeout(limit(10)):
            findings = await check_desktop(address)
        assert [(each.name, each.ok) for each in findings] == [("reach", False)]
        fake.running.set()
