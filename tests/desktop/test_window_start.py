"""Windows of programs and of a window manager that are slow, as on a busy machine."""

from __future__ import annotations

import asyncio
import struct
import threading
import time

import xcffib.xproto
from patience import limit
from xcffib.xproto import CW, Atom, ConfigWindow, EventMask, PropMode, WindowClass

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.x_connection import XConnection

SMALL = DesktopSpec("plain", 320, 256)
SLOW_S = 0.8


async def test_a_window_is_placed_when_the_window_manager_is_slow(desktop: LocalDesktop) -> None:
    await desktop.launch(["l3afpad"])
    (window,) = await desktop.wait_window("l3afpad")
    await desktop.shell("pkill -STOP -x openbox")
    placing = asyncio.create_task(desktop.place_window(window, 30, 50))
    await asyncio.sleep(SLOW_S)
    await desktop.shell("pkill -CONT -x openbox")
    placed = await placing
    (now,) = await desktop.windows()
    assert [(each.x, each.y) for each in (placed, now)] == [(30, 50)] * 2


async def test_a_program_with_a_minimum_size_is_placed_with_it(desktop: LocalDesktop) -> None:
    await desktop.launch(["galculator"])
    (window,) = await desktop.wait_window("galculator")
    placed = await desktop.place_window(window, 20, 30, 1, 1)
    assert (placed.x, placed.y) == (20, 30)
    assert placed.width > 50
    assert placed == (await desktop.windows())[0]


def show_slowly(guest: XConnection, over: threading.Event) -> None:
    """Map a window of 50x40, compute for `SLOW_S` after it was framed, make it 90x60, and then read input."""
    window, core = guest.x.generate_id(), guest.core
    mask = [EventMask.PropertyChange | EventMask.StructureNotify]
    core.CreateWindow(0, window, guest.root, 0, 0, 50, 40, 0, WindowClass.InputOutput, 0, CW.EventMask, mask)
    core.ChangeProperty(PropMode.Replace, window, Atom.WM_CLASS, Atom.STRING, 8, 10, b"late\0late\0")
    ping = [guest.atoms["_NET_WM_PING"]]
    core.ChangeProperty(PropMode.Replace, window, guest.atoms["WM_PROTOCOLS"], Atom.ATOM, 32, 1, ping)
    core.MapWindow(window)
    guest.sync()
    time.sleep(SLOW_S)
    core.ConfigureWindow(window, ConfigWindow.Width | ConfigWindow.Height, [90, 60])
    while not over.is_set():
        event = guest.next_event(0.05)
        if isinstance(event, xcffib.xproto.ClientMessageEvent) and event.data.data32[0] in ping:
            data = struct.pack("<5I", *event.data.data32)
            reply = struct.pack("<BBHII20s", 33, 32, 0, guest.root, guest.atoms["WM_PROTOCOLS"], data)
            core.SendEvent(False, guest.root, EventMask.SubstructureRedirect | EventMask.SubstructureNotify, reply)
            guest.x.flush()


async def test_a_new_window_is_found_once_its_program_reads_input(desktop: LocalDesktop) -> None:
    over = threading.Event()
    server = desktop._session.x_server  # type: ignore[union-attr]
    guest = XConnection(server.name, server.cookie)
    program = threading.Thread(target=show_slowly, args=(guest, over))
    program.start()
    try:
        (window,) = await desktop.wait_window("late")
        assert (window.width, window.height) == (90, 60)
    finally:
        over.set()
        program.join(limit(10))
        guest.close()


async def test_a_program_that_never_replies_is_not_waited_for_long_or_twice(desktop: LocalDesktop) -> None:
    await desktop.launch(["galculator"])
    await desktop.wait_window("galculator")
    session = desktop._session
    assert session is not None
    await desktop.shell("pkill -STOP -x galculator")
    session.connection.started_windows.clear()
    requests = []
    for _ in range(2):
        before = session.connection.core.GetInputFocus().sequence
        await desktop.wait_window("galculator")
        requests.append(session.connection.core.GetInputFocus().sequence - before)
    assert requests[1] < requests[0]
