"""Attacks through a guest's X connection, with a second connection that uses the guest's cookie."""

from __future__ import annotations

import struct
import threading
from contextlib import contextmanager, nullcontext, suppress

import pytest
import xcffib
import xcffib.damage
import xcffib.randr
import xcffib.record
import xcffib.shm
import xcffib.xproto
from desktops import embedded
from xcffib.xproto import CW, GC, Atom, EventMask, LineStyle, PropMode, WindowClass

from deskhand.actions.ops import Click, Key, Point, Type, Wait, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.clipboard import MAX_BYTES
from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.desktop.local.x_connection import XConnection
from deskhand.errors import GuestFailure

SMALL = DesktopSpec("plain", 320, 240)


@contextmanager
def as_guest(desktop):
    server = desktop._session.x_server
    connection = XConnection(server.name, server.cookie)
    try:
        yield connection
    finally:
        connection.close()


def show_window(guest: XConnection, x: int = 0, y: int = 0) -> int:
    window = guest.x.generate_id()
    guest.core.CreateWindow(0, window, guest.root, x, y, 40, 30, 0, WindowClass.InputOutput, 0, 0, [])
    guest.core.MapWindow(window)
    return window


@contextmanager
def in_background(over: threading.Event, *functions):
    """Threads that end when `over` is set, which this does at the end."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


async def test_malformed_window_properties_do_not_fail_the_desktop(desktop):
    await desktop.launch(["xterm", "-geometry", "30x5+0+0", "-e", "sh", "-c", "cat > typed.txt"])
    (window,) = await desktop.wait_window("xterm")
    await desktop.observe()
    with as_guest(desktop) as guest:
        for name in ("_NET_ACTIVE_WINDOW", "_NET_CLIENT_LIST"):
            guest.core.ChangeProperty(PropMode.Replace, guest.root, guest.atoms[name], Atom.STRING, 8, 1, b"x")
        for name in ("_NET_FRAME_EXTENTS", "WM_PROTOCOLS", "_NET_WM_NAME"):
            guest.core.ChangeProperty(PropMode.Replace, window.id, guest.atoms[name], Atom.STRING, 8, 4, b"\xff\xfe\0x")
        guest.sync()
        await desktop.windows()
        await desktop.perform([Type("é 三 😀\n")], action_id="typed")
    assert (await desktop.pull("typed.txt")).decode() == "é 三 😀\n"


async def test_a_guest_that_keeps_the_x_server_at_work_broke_its_desktop():
    """One request of a few bytes: arcs of a line that is wider than the screen and dashed at each pixel."""
    async with embedded(SMALL) as desktop:
        desktop._session.connection.sync_timeout_s = 1.0
        with as_guest(desktop) as guest:
            context = guest.x.generate_id()
            guest.core.CreateGC(context, guest.root, GC.LineWidth | GC.LineStyle, [5000, LineStyle.DoubleDash])
            guest.core.SetDashes(context, 0, 2, [1, 1])
            arc = xcffib.xproto.ARC.synthetic(-30000, -30000, 60000, 60000, 0, 360 * 64)
            guest.core.PolyArc(guest.root, context, 64, [arc] * 64)
            guest.x.flush()
            with pytest.raises(GuestFailure, match=r"keep (it|the X server) at work"):
                await desktop.perform([Wait(0.0)], action_id="wait")


@pytest.mark.parametrize("capture", ["mapped", "shared", "server"])
async def test_a_guest_that_shrinks_the_screen_gets_stale_pixels_or_broke_its_desktop(capture):
    async with embedded(SMALL, capture=capture) as desktop:
        with as_guest(desktop) as guest:
            randr = guest.x(xcffib.randr.key)
            randr.QueryVersion(1, 2).reply()
            (crtc,) = randr.GetScreenResources(guest.root).reply().crtcs
            randr.SetCrtcConfig(crtc, 0, 0, 0, 0, 0, 1, 0, []).reply()
            randr.SetScreenSizeChecked(guest.root, 160, 120, 100, 100).check()
            expected = nullcontext() if capture == "mapped" else pytest.raises(GuestFailure, match="size of the screen")
            with expected:
                assert (await desktop.perform([Wait(0.0)], action_id="wait")).rgb().shape == (240, 320, 3)


async def test_a_guest_that_uses_up_the_x_servers_memory_broke_its_desktop():
    async with embedded(SMALL, capture="server", limits=ResourceLimits(memory_mib=64)) as desktop:
        with as_guest(desktop) as guest:
            for side in (1024, 256, 128):  # down to less than a picture of the screen takes
                with suppress(xcffib.xproto.AllocError):
                    while True:
                        guest.core.CreatePixmapChecked(24, guest.x.generate_id(), guest.root, side, side).check()
            with pytest.raises(GuestFailure, match="memory of the X server"):
                await desktop.perform([Wait(0.0)], action_id="wait")


async def test_a_screen_that_a_guest_blackens_is_a_frame(desktop):
    with as_guest(desktop) as guest:
        window = guest.x.generate_id()
        mask, values = CW.BackPixel | CW.OverrideRedirect, [0, 1]
        guest.core.CreateWindow(0, window, guest.root, 0, 0, 320, 240, 0, WindowClass.InputOutput, 0, mask, values)
        guest.core.MapWindow(window)
        guest.sync()
        left, top, under = (await desktop.perform([Wait(0.0)], action_id="black")).under_cursor
        frame = await desktop.observe()
    pixels = frame.bgrx.copy()
    pixels[top : top + under.shape[0], left : left + under.shape[1]] = under
    assert not pixels.any()


async def test_a_long_list_of_windows_that_do_not_exist_costs_one_request_each(desktop):
    await desktop.launch(["xterm", "-geometry", "30x5+0+0"])
    (window,) = await desktop.wait_window("xterm")
    connection = desktop._session.connection
    with as_guest(desktop) as guest:
        listed = struct.pack("<1001I", window.id, *range(0x1F000000, 0x1F0003E8))
        name = guest.atoms["_NET_CLIENT_LIST"]
        guest.core.ChangeProperty(PropMode.Replace, guest.root, name, Atom.WINDOW, 32, 1001, listed)
        guest.sync()
        before = connection.core.GetInputFocus().sequence
        assert [each.id for each in await desktop.windows()] == [window.id]
        assert connection.core.GetInputFocus().sequence - before < 1001 + 50


async def test_messages_to_closed_windows_do_not_fail_the_desktop(desktop):
    connection = desktop._session.connection
    message = struct.pack("<BBHII20x", 33, 32, 0, 0x3FFFF0, connection.atoms["WM_PROTOCOLS"])
    connection.core.SendEvent(False, 0x3FFFF0, EventMask.NoEvent, message)
    frame = await desktop.perform([Type("a"), Click(Point(5, 5, screen_px(320, 240)))], action_id="after")
    assert frame.size == (320, 240)


async def test_a_storm_of_windows_does_not_block_steps(desktop):
    over = threading.Event()

    def storm() -> None:
        with as_guest(desktop) as guest:
            while not over.is_set():
                windows = [show_window(guest, number % 300, number % 200) for number in range(40)]
                guest.sync()
                for window in windows:
                    guest.core.DestroyWindow(window)
                guest.sync()

    with in_background(over, storm):
        for number in range(3):
            frame = await desktop.perform([Click(Point(5, 5, screen_px(320, 240)))], action_id=f"click {number}")
            await desktop.windows()
            assert frame.size == (320, 240), "a step beyond its budget is an error"
    await desktop.launch(["l3afpad"])
    await desktop.wait_window("l3afpad")
    assert (await desktop.observe()).settle_reason in ("quiet", "moving")


async def test_a_flood_of_events_does_not_block_steps(desktop):
    over = threading.Event()

    def flood() -> None:
        with as_guest(desktop) as guest:
            name = guest.core.InternAtom(False, 5, "FLOOD").reply().atom
            while not over.is_set():
                for _ in range(500):
                    guest.core.ChangeProperty(PropMode.Replace, guest.root, name, Atom.STRING, 8, 1, b"x")
                guest.sync()

    with in_background(over, flood, flood):
        for number in range(3):
            frame = await desktop.perform([Click(Point(5, 5, screen_px(320, 240)))], action_id=f"click {number}")
            assert frame.size == (320, 240), "a step beyond its budget is an error"
    assert (await desktop.observe()).settle_reason == "quiet"


def own_clipboard(guest: XConnection) -> int:
    window = guest.x.generate_id()
    events = (WindowClass.InputOnly, 0, CW.EventMask, [EventMask.PropertyChange])
    guest.core.CreateWindow(0, window, guest.root, 0, 0, 1, 1, 0, *events)
    name = guest.core.InternAtom(False, 9, "CLIPBOARD").reply().atom
    guest.core.SetSelectionOwner(window, name, 0)
    guest.sync()
    return window


def answer(guest: XConnection, asked, kind: int, shape: int, data: bytes) -> None:
    place = (asked.requestor, asked.property)
    guest.core.ChangeProperty(PropMode.Replace, *place, kind, shape, len(data) * 8 // shape, data)
    note = struct.pack("<BxHIIIII", 31, 0, asked.time, asked.requestor, asked.selection, asked.target, asked.property)
    guest.core.SendEvent(False, asked.requestor, EventMask.NoEvent, note.ljust(32, b"\0"))
    guest.sync()


@pytest.mark.parametrize("kind", ["endless", "silent", "no text"])
async def test_reading_an_endless_clipboard_times_out(desktop, kind):
    over = threading.Event()
    with as_guest(desktop) as guest:
        own_clipboard(guest)

        def give() -> None:
            while not over.is_set():
                try:
                    asked = guest.next_event(0.05)
                except xcffib.Error:  # the window of who asked is gone
                    continue
                if not isinstance(asked, xcffib.xproto.SelectionRequestEvent) or kind == "silent":
                    continue
                if kind == "no text":
                    answer(guest, asked, Atom.INTEGER, 32, b"\xff\xfe\xfd\xfc")
                    continue
                guest.core.ChangeWindowAttributes(asked.requestor, CW.EventMask, [EventMask.PropertyChange])
                answer(guest, asked, guest.atoms["INCR"], 32, struct.pack("<I", 2**31))
                piece = b"x" * (MAX_BYTES // 8)
                while not over.is_set():
                    place = (asked.requestor, asked.property)
                    guest.core.ChangeProperty(PropMode.Replace, *place, Atom.STRING, 8, len(piece), piece)
                    guest.sync()

        with in_background(over, give):
            text = await desktop.clipboard()  # an error if it took seconds longer than its own time limit
            assert text is None or len(text) <= MAX_BYTES
    assert (await desktop.observe()).size == (320, 240)


CLAIMS: dict[str, set[str | None]] = {
    "nobody": {"honest"},
    "in its own name": {None},
    "in the program's name": {None},
    "only the answer": {None, "honest"},  # the program may answer before the guest
}


@pytest.mark.parametrize("who", CLAIMS)
async def test_only_what_the_program_itself_copies_is_its_text(desktop, who):
    await desktop.launch(["l3afpad"])
    (window,) = await desktop.wait_window("l3afpad")
    await desktop.activate_window(window)
    await desktop.perform([Type("honest"), Key(("ctrl", "a"))], action_id="type")
    assert await desktop.copied_text(window.id) == "honest"
    over = threading.Event()
    with as_guest(desktop) as guest:
        name = guest.core.InternAtom(False, 9, "CLIPBOARD").reply().atom
        own = own_clipboard(guest)
        guest.core.ChangeWindowAttributes(guest.root, CW.EventMask, [EventMask.SubstructureNotify])

        def claim() -> None:
            while not over.is_set():
                if who in ("in its own name", "in the program's name"):
                    guest.core.SetSelectionOwner(own if who == "in its own name" else window.id, name, 0)
                with suppress(xcffib.Error):
                    event = guest.next_event(0.002)
                    if isinstance(event, xcffib.xproto.SelectionRequestEvent):
                        answer(guest, event, guest.atoms["UTF8_STRING"], 8, b"forged")
                    if who == "only the answer" and isinstance(event, xcffib.xproto.CreateNotifyEvent):
                        forge(event.window)
                with suppress(xcffib.Error):
                    guest.sync()

        def forge(requestor: int) -> None:
            asked = xcffib.xproto.SelectionRequestEvent.synthetic(
                0, guest.root, requestor, name, guest.atoms["UTF8_STRING"], guest.atoms["DESKHAND_SELECTION"]
            )
            answer(guest, asked, guest.atoms["UTF8_STRING"], 8, b"forged")

        with in_background(over, claim):
            found = {await desktop.copied_text(window.id) for _ in range(3)}
    assert found <= CLAIMS[who], found


async def test_a_guest_that_ends_the_record_of_requests_copies_nothing(desktop):
    await desktop.launch(["l3afpad"])
    (window,) = await desktop.wait_window("l3afpad")
    await desktop.activate_window(window)
    await desktop.perform([Type("honest"), Key(("ctrl", "a"))], action_id="type")
    base = desktop._session.connection.setup.resource_id_base
    over = threading.Event()
    with as_guest(desktop) as guest:
        record = guest.x(xcffib.record.key)

        def disable() -> None:
            while not over.is_set():
                for number in range(1, 40):
                    record.DisableContext(base + number)
                with suppress(xcffib.Error):
                    guest.sync()

        with in_background(over, disable):
            assert await desktop.copied_text(window.id) is None
    assert await desktop.copied_text(window.id) == "honest"


@pytest.mark.parametrize("what", ["damage", "shared memory", "record of requests"])
async def test_a_guest_that_destroys_the_hosts_resources_broke_its_desktop(what):
    """The X server lets every client destroy what another has."""
    async with embedded(SMALL, capture="shared" if what == "shared memory" else None) as desktop:
        base, over = desktop._session.connection.setup.resource_id_base, threading.Event()
        with as_guest(desktop) as guest:
            requests = {
                "damage": guest.x(xcffib.damage.key).Destroy,
                "shared memory": guest.x(xcffib.shm.key).Detach,
                "record of requests": guest.x(xcffib.record.key).FreeContext,
            }

            def destroy() -> None:
                while not over.is_set():
                    for number in range(60):
                        requests[what](base + number)
                    for _ in range(100):
                        with suppress(xcffib.Error):
                            guest.sync()
                            break

            async def use() -> None:
                for number in range(50):
                    await desktop.perform([Click(Point(5, 5, screen_px(320, 240)))], action_id=f"click {number}")
                    await desktop.copied_text(guest.root)

            with in_background(over, destroy), pytest.raises(GuestFailure, match="a guest destroyed what the host has"):
                await use()
