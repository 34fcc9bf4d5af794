"""Desktops that lost a part report a failure."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import time
from contextlib import nullcontext

import pytest
from desktops import ISOLATIONS, embedded, failure_of
from patience import limit

from deskhand.actions.ops import Done, Key
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import processes, windows
from deskhand.desktop.local.isolation import guests_can_kill_this_user
from deskhand.desktop.local.x_connection import x_errors
from deskhand.errors import GuestFailure, InfrastructureError

SMALL = DesktopSpec("plain", 320, 240)


@pytest.fixture(params=ISOLATIONS)
async def desktop(request):
    async with embedded(SMALL, isolation_level=request.param) as desktop:
        await desktop.launch(["l3afpad"])
        await desktop.wait_window("l3afpad")
        yield desktop


@pytest.mark.parametrize("part", ["x server", "window manager", "applications"])
async def test_a_part_that_is_killed_fails_every_later_call_until_the_next_reset(desktop, part):
    (pid,) = desktop.parts()[part]
    processes.kill(pid)
    reasons = {"window manager": ["openbox has exited"], "applications": ["l3afpad was killed by SIGKILL"]}
    failure = await failure_of(desktop)  # with the X server goes whatever needs it: which end is noticed first differs
    assert any(reason in failure for reason in reasons.get(part, ["exited", "the X server failed"])), failure
    await asyncio.sleep(0.2)
    calls = [desktop.observe(), desktop.perform([Done()], action_id="after"), desktop.pull(".bashrc")]
    for call in [*calls, desktop.push("x", b""), desktop.run(["true"]), desktop.listdir(".")]:
        with pytest.raises(InfrastructureError):
            await call
    await desktop.reset(SMALL)
    await desktop.observe()


async def test_a_normal_exit_is_not_a_failure(desktop):
    await desktop.perform([Key(("alt", "f4"))], action_id="close")
    await desktop.launch(["sh", "-c", "sleep 0.1; exit 3"])
    await desktop.launch(["sh", "-c", "sleep 0.1; kill -TERM $$"])
    await desktop.run(["sh", "-c", "kill -KILL $$"])
    await desktop.run(["sleep", "9"], timeout_s=0.1)
    await asyncio.sleep(0.4)
    assert await desktop.windows() == []
    await desktop.observe()


async def test_a_program_that_crashes_by_itself_fails_the_desktop(desktop):
    await desktop.launch(["sh", "-c", f"sleep 0.1; kill -{signal.SIGSEGV.value} $$"])
    assert "sh was killed by SIGSEGV" in await failure_of(desktop)


async def test_a_window_that_closes_while_listed_is_skipped(desktop, monkeypatch):
    connection = desktop._session.connection
    real = windows._cardinals
    monkeypatch.setattr(windows, "_cardinals", lambda *asked: [*real(*asked), connection.x.generate_id()])
    assert [window.wm_class for window in await desktop.windows()] == ["l3afpad.L3afpad"]
    gone = connection.x.generate_id()
    with pytest.raises(InfrastructureError, match="placing"), x_errors("placing"):
        windows._describe(connection, gone)


async def test_crashes_are_ignored_with_crashes_fail_false():
    async with embedded(SMALL, crashes_fail=False) as desktop:
        await desktop.launch(["sh", "-c", "sleep 0.1; kill -KILL $$"])
        await asyncio.sleep(0.4)
        await desktop.observe()


async def test_waiting_for_a_window_stops_when_the_desktop_fails(desktop):
    waiting = asyncio.create_task(desktop.wait_window("a window that never comes"))
    await asyncio.sleep(0.1)
    processes.kill(desktop.parts()["applications"][0])
    async with asyncio.timeout(limit(5)):
        with pytest.raises(InfrastructureError, match="l3afpad was killed by SIGKILL"):
            await waiting


STOPS = {
    "the application": ("pkill -STOP l3afpad", True),
    "everything": ("kill -STOP -1", True),
    "what nobody needs": ("setsid sleep 60 & kill -STOP $!", False),
    "nothing": ("true", False),
}


@pytest.mark.parametrize("what", STOPS)
async def test_stopped_programs_are_evidence_only_if_the_host_needs_them(desktop, what):
    if guests_can_kill_this_user(desktop.isolation_level):
        pytest.skip("guests of this machine could stop the processes of its user")
    script, is_evidence = STOPS[what]
    session, error = desktop._session, InfrastructureError("the machine did not answer in time")
    with pytest.raises(GuestFailure) if is_evidence else nullcontext():
        await desktop.run(["sh", "-c", script], timeout_s=2.0)
        await asyncio.to_thread(desktop._explain, session, error)


async def test_a_program_that_the_host_debugs_was_not_stopped_by_a_guest(desktop):
    (pid,) = desktop.parts()["applications"]
    libc = ctypes.CDLL(None, use_errno=True)
    attach, detach = 16, 17  # linux/ptrace.h
    if libc.ptrace(attach, pid, None, None) != 0:
        pytest.skip("this process may not debug guests")
    try:
        deadline = time.monotonic() + limit(5)
        while processes.state(pid) != "t" and time.monotonic() < deadline:
            pass
        assert processes.state(pid) == "t"
        assert not desktop._session.jail.has_stopped_programs()
    finally:
        libc.ptrace(detach, pid, None, None)
