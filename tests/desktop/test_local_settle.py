"""Settling: animations, late drawing, endless drawing, and a server that does not respond."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from types import SimpleNamespace

import pytest
import xcffib.damage
from desktops import embedded, point_on
from patience import is_fast

from deskhand.actions.ops import Click, Drag, Key, KeyDown, KeyUp, MouseDown, MouseUp, Move, Scroll, Type, Wait
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import x_connection
from deskhand.desktop.local.x_connection import XConnection
from deskhand.errors import GuestFailure

SMALL = DesktopSpec("plain", 640, 400)
TURNING = r"""while :; do for c in / - '\' '|'; do printf "\r$c"; sleep 0.03; done; done"""
SPINNER = ["xterm", "-geometry", "8x2+500+330", "-e", "sh", "-c", TURNING]
BLINKING = ["xterm", "-bc", "-bcn", "40", "-bcf", "40"]
COUNTING = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done"
PRINTING = ["xterm", "-geometry", "60x20+0+0", "-e", "sh", "-c", COUNTING]
COMPUTING = ["sh", "-c", "while :; do :; done"]


at = point_on(SMALL)


@pytest.fixture
async def desktop():
    async with embedded(SMALL, settle_ms=100, settle_timeout_s=3.0) as desktop:
        yield desktop


async def launch(desktop, argv, *, wait=True):
    await desktop.launch(argv)
    if wait:
        await desktop.wait_window("xterm")
        await asyncio.sleep(0.3)


@pytest.mark.parametrize("animated", [SPINNER, BLINKING])
async def test_a_spinner_or_caret_does_not_delay_settling_and_is_reported(desktop, animated):
    await launch(desktop, animated)
    await desktop.observe()
    frame = await desktop.observe()
    assert frame.settle_reason == "moving", "`cap` if it had waited to the time limit"
    ((left, top, right, bottom),) = frame.moving
    changed = frame.changed_bbox
    assert changed is None or (left <= changed[0] and top <= changed[1])
    assert changed is None or (changed[2] <= right and changed[3] <= bottom)
    assert right - left <= 48


async def test_settling_waits_for_a_response_next_to_a_spinner(desktop):
    """A busy machine may start the response later than `settle_ms`, which looks like none; then it is tried again."""
    await launch(desktop, SPINNER)
    script = "read line; for i in 1 2 3 4 5 6 7 8; do sleep 0.08; printf '#'; done; echo > finished; read line"
    for attempt in range(5):
        await desktop.launch(["xterm", "-geometry", "40x8+0+0", "-e", "sh", "-c", script])
        await desktop.wait_window("xterm", count=2 + attempt)
        await desktop.perform([Click(at(100, 60))], action_id=f"front-{attempt}")
        await desktop.observe()
        frame = await desktop.perform([Key(("enter",))], action_id=f"go-{attempt}")
        if frame.settle_ms > 500:
            break
    assert frame.settle_reason == "moving"
    assert frame.settle_ms > 500
    assert await desktop.pull("finished") == b"\n"


async def test_a_screen_that_never_settles_ends_at_the_time_limit(desktop):
    desktop.settle_timeout_s = 0.6
    await desktop.reset(DesktopSpec("dark", SMALL.width, SMALL.height))
    await launch(desktop, PRINTING)
    frame = await desktop.observe()  # an error if it took seconds longer than `settle_timeout_s`
    assert frame.settle_reason == "cap"


async def test_every_op_ends_within_its_budget_on_a_busy_screen(desktop):
    """Otherwise the desktop ends the action with an error, `REPLY_MARGIN_S` later."""
    desktop.settle_timeout_s = 0.3
    await desktop.reset(DesktopSpec("dark", SMALL.width, SMALL.height))
    for argv in (SPINNER, PRINTING, COMPUTING):
        await launch(desktop, argv, wait=argv is not COMPUTING)
    await desktop.launch(["l3afpad"])
    await desktop.wait_window("l3afpad")
    ops = [
        Move(at(300, 200)),
        Click(at(300, 200), count=2),
        MouseDown(),
        MouseUp(),
        Drag((at(300, 200), at(330, 210))),
        Scroll(dy=2),
        Type("ж你"),
        Key(("ctrl", "a")),
        KeyDown("shift"),
        KeyUp("shift"),
        Wait(0.1),
    ]
    for index, op in enumerate(ops):
        frame = await desktop.perform([op], action_id=str(index))
        assert frame.size == (SMALL.width, SMALL.height), op


async def test_ops_without_an_effect_do_not_stall(desktop):
    """`xdotool mousemove --sync`, for instance, stalls if the pointer is already there."""
    await desktop.perform([Move(at(100, 100))], action_id="there")
    here = at(100, 100)
    idle = [Move(here), Drag((here, here)), Scroll(), MouseUp(), KeyUp("a"), Type(""), Wait(0), Key(("shift",))]
    numbers = itertools.count()

    async def perform(op):
        frame = await desktop.perform([op], action_id=str(next(numbers)))
        assert frame.changed_bbox is None
        assert frame.settle_reason == "quiet"

    for op in idle:
        assert await is_fast(partial(perform, op), 1.0), op


async def test_a_grabbed_server_blocks_no_action_and_recovers(desktop):
    session = desktop._session
    session.connection.sync_timeout_s = 0.4
    holder = XConnection(session.x_server.name, session.x_server.cookie)
    holder.core.GrabServer()
    holder.sync()
    own_limit = r"within 0\.4 s: a guest has grabbed it"  # not that of the desktop, which is seconds longer
    with pytest.raises(GuestFailure, match=own_limit):
        await desktop.perform([Move(at(50, 50))], action_id="held")
    with pytest.raises(GuestFailure, match=own_limit):
        await desktop.observe()
    with pytest.raises(GuestFailure, match=own_limit):  # known at the limit: the guest may let go just then
        session.connection.sync()
    assert session.x_server.probe() == "grabbed"
    holder.core.UngrabServer()
    holder.sync()
    holder.close()
    frame = await desktop.perform([Move(at(60, 70))], action_id="free")
    assert frame.cursor == (60, 70)


def test_drawing_is_noticed_even_if_the_host_stalls_for_the_whole_wait(monkeypatch):
    connection = XConnection.__new__(XConnection)
    connection.next_event = lambda timeout_s: xcffib.damage.NotifyEvent.__new__(xcffib.damage.NotifyEvent)
    clock = itertools.count()
    monkeypatch.setattr(x_connection, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert connection.wait_for_damage(0.05)
