"""When a screen counts as quiet: what moves by itself, what is late, what never ends, and a server that does not answer."""

from __future__ import annotations

import asyncio
import time

import pytest
from patience import limit

from deskhand.actions.ops import (
    Click,
    Drag,
    Key,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Point,
    Scroll,
    Type,
    Wait,
    screen_px,
)
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.action_executor import op_budget_s
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.x_connection import XConnection
from deskhand.errors import DeliveryUnknown, InfrastructureError

SMALL = DesktopSpec("plain", 640, 400)
TURNING = r"""while :; do for c in / - '\' '|'; do printf "\r$c"; sleep 0.03; done; done"""
SPINNER = ["xterm", "-geometry", "8x2+500+330", "-e", "sh", "-c", TURNING]
PRINTING = [
    "xterm",
    "-geometry",
    "60x20+0+0",
    "-e",
    "sh",
    "-c",
    "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done",
]
COMPUTING = ["sh", "-c", "while :; do :; done"]


def at(x: int, y: int) -> Point:
    return Point(x, y, screen_px(SMALL.width, SMALL.height))


@pytest.fixture
async def desktop():
    desktop = LocalDesktop(quiet_ms=100, cap_s=3.0)
    await desktop.reset(SMALL)
    yield desktop
    await desktop.close()


async def launch(desktop, argv, *, wait=True):
    await desktop.launch(argv)
    if wait:
        await desktop.wait_window("xterm")
        await asyncio.sleep(0.3)


async def test_a_spinner_does_not_hold_the_screen_up_and_is_named(desktop):
    await launch(desktop, SPINNER)
    await desktop.observe()
    start = time.monotonic()
    frame = await desktop.observe()
    assert frame.settle_reason == "moving"
    assert time.monotonic() - start < limit(1.0)
    ((left, top, right, bottom),) = frame.moving
    changed = frame.changed_bbox
    assert changed is None or (
        left <= changed[0] and top <= changed[1] and changed[2] <= right and changed[3] <= bottom
    )
    assert right - left <= 48


async def test_an_answer_beside_a_spinner_is_waited_for(desktop):
    await launch(desktop, SPINNER)
    script = "read line; for i in 1 2 3 4 5 6 7 8; do sleep 0.08; printf '#'; done; echo > finished; read line"
    await desktop.launch(["xterm", "-geometry", "40x8+0+0", "-e", "sh", "-c", script])
    await desktop.wait_window("xterm", count=2)
    await desktop.perform([Click(at(100, 60))], action_id="front")
    await desktop.observe()
    frame = await desktop.perform([Key(("enter",))], action_id="go")
    assert frame.settle_reason == "moving"
    assert frame.settled_ms > 500
    assert await desktop.pull("finished") == b"\n"


async def test_a_picture_that_never_rests_ends_at_the_cap(desktop):
    desktop.cap_s = 0.6
    await desktop.reset(DesktopSpec("dark", SMALL.width, SMALL.height))
    await launch(desktop, PRINTING)
    start = time.monotonic()
    frame = await desktop.observe()
    assert frame.settle_reason == "cap"
    assert time.monotonic() - start < limit(2.0)


async def test_every_op_ends_within_its_budget_beside_a_spinner_a_film_and_a_program_that_computes(desktop):
    desktop.cap_s = 0.3
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
        start = time.monotonic()
        await desktop.perform([op], action_id=str(index))
        taken, budget = time.monotonic() - start, op_budget_s(op, ((300, 200), (330, 210))) + desktop.cap_s
        assert taken < limit(budget), op


async def test_what_changes_nothing_stalls_nothing(desktop):
    """Waiting for the effect of input that has none is how `xdotool mousemove --sync` stalls where the pointer is already there."""
    await desktop.perform([Move(at(100, 100))], action_id="there")
    here = at(100, 100)
    idle = [Move(here), Drag((here, here)), Scroll(), MouseUp(), KeyUp("a"), Type(""), Wait(0), Key(("shift",))]
    for index, op in enumerate(idle):
        start = time.monotonic()
        frame = await desktop.perform([op], action_id=str(index))
        assert time.monotonic() - start < limit(1.0), op
        assert frame.changed_bbox is None
        assert frame.settle_reason == "quiet"


async def test_a_server_that_a_guest_holds_stalls_no_action_and_serves_again_when_it_is_let_go(desktop):
    session = desktop._session
    session.connection.sync_limit_s = 0.4
    holder = XConnection(session.x_server.name, session.x_server.cookie)
    holder.core.GrabServer()
    holder.sync()
    start = time.monotonic()
    with pytest.raises(InfrastructureError, match="a guest holds it") as refused:
        await desktop.perform([Move(at(50, 50))], action_id="held")
    assert not isinstance(refused.value, DeliveryUnknown)  # it never got so far as to send anything
    with pytest.raises(InfrastructureError, match="a guest holds it"):
        await desktop.observe()
    assert time.monotonic() - start < limit(3.0)
    holder.core.UngrabServer()
    holder.sync()
    holder.close()
    frame = await desktop.perform([Move(at(60, 70))], action_id="free")
    assert frame.cursor == (60, 70)
