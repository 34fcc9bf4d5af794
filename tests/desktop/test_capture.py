"""Pixels and the pointer in them, by every way of reading a screen."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import sysv_ipc
from patience import limit
from xcffib.xproto import CW, GC, RECTANGLE, WindowClass

from deskhand.actions.ops import Move, Point, Type, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import cursor_overlay
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.screen_reader import GetImageReader, SharedMemoryReader, open_screen_reader
from deskhand.desktop.local.shared_memory import Segment
from deskhand.desktop.local.x_connection import PointerImage, XConnection
from deskhand.errors import FrameError

SMALL = DesktopSpec("plain", 320, 240)


def at(x: int, y: int) -> Point:
    return Point(x, y, screen_px(SMALL.width, SMALL.height))


async def open_editor(desktop):
    await desktop.launch(["l3afpad"])
    await desktop.wait_window("l3afpad")
    await desktop.observe()


@pytest.mark.parametrize("place", [(150, 120), (5, 5), (0, 0), (319, 239), (318, 0)])
async def test_the_pointer_is_laid_over_as_the_server_would_draw_it(desktop, place):
    await open_editor(desktop)
    frame = await desktop.perform([Type("some text"), Move(at(*place))], action_id="there")
    connection, screen = desktop._session.connection, desktop._session.screen
    hidden = screen.copy()
    connection._fixes.ShowCursor(connection.root)
    connection.sync()
    drawn = screen.copy()
    connection.hide_pointer()
    different = (frame.bgrx[:, :, :3].astype(int) - drawn.view(np.uint8).reshape(frame.bgrx.shape)[:, :, :3]).reshape(
        -1
    )
    assert np.abs(different).max() <= 1  # the server rounds half-transparent edges its own way
    assert frame.cursor == place
    assert (frame.without_cursor().bgrx[:, :, :3] == hidden.view(np.uint8).reshape(frame.bgrx.shape)[:, :, :3]).all()


async def test_without_the_pointer_a_move_changes_no_pixel(desktop):
    first = await desktop.perform([Move(at(50, 50))], action_id="a")
    second = await desktop.perform([Move(at(250, 150))], action_id="b")
    assert first.sha256 != second.sha256
    assert first.without_cursor().sha256 == second.without_cursor().sha256
    assert first.without_cursor().without_cursor().png() == second.without_cursor().png()


def test_a_pointer_beyond_the_edge_is_cut_off_and_one_off_the_screen_is_not_drawn():
    argb = np.full((6, 4), 0xFF112233, np.uint32)
    for x, y, covered in ((0, 0, 2), (19, 9, 18), (10, 5, 24), (-8, 2, 0), (40, 2, 0)):
        pixels = np.full((10, 20), 0x445566, np.uint32)
        under = cursor_overlay.draw_cursor(pixels, PointerImage(x, y, 2, 5, argb))
        assert np.count_nonzero(pixels == 0x112233) == (under[2].size if under else 0) == covered
        if under:
            left, top, patch = under
            pixels[top : top + patch.shape[0], left : left + patch.shape[1]] = patch
        assert (pixels == 0x445566).all()


def test_a_half_transparent_pointer_is_mixed():
    pixels = np.full((2, 2), 0x0000C8, np.uint32)
    cursor_overlay.draw_cursor(pixels, PointerImage(0, 0, 0, 0, np.array([[0x80008000, 0]], np.uint32)))
    assert [hex(value) for value in pixels.reshape(-1)] == ["0x8064", "0xc8", "0xc8", "0xc8"]


@pytest.mark.parametrize(("way", "kind"), [("server", GetImageReader), ("shared", SharedMemoryReader)])
@pytest.mark.parametrize(("width", "height"), [(256, 192), (1001, 703), (1920, 1200)])
async def test_every_way_gives_the_same_pixels_at_any_size(width, height, way, kind):
    desktop = LocalDesktop(capture=way)
    try:
        frame = await desktop.reset(DesktopSpec("plain", width, height))
        session = desktop._session
        assert isinstance(session.screen, kind)
        await desktop.launch(["l3afpad"])
        await desktop.wait_window("l3afpad")
        frame = await desktop.observe()
        assert frame.size == (width, height)
        mapped = open_screen_reader(session.x_server, session.connection, width, height, "mapped")
        assert (mapped.copy() == session.screen.copy()).all()
        assert len(np.unique(mapped.copy())) > 10
        mapped.close()
    finally:
        await desktop.close()


async def test_a_memory_that_cannot_be_mapped_is_replaced_by_asking_the_server(desktop, tmp_path):
    session = desktop._session
    before = session.screen.copy()
    session.x_server.framebuffer_path = tmp_path / "nothing"
    screen = open_screen_reader(session.x_server, session.connection, SMALL.width, SMALL.height, None)
    assert (screen.copy() == before).all()
    for damage in (b"", b"\0" * 400):
        session.x_server.framebuffer_path.write_bytes(damage)
        screen = open_screen_reader(session.x_server, session.connection, SMALL.width, SMALL.height, None)
        assert isinstance(screen, GetImageReader)
        with pytest.raises(FrameError, match="cannot be mapped"):
            open_screen_reader(session.x_server, session.connection, SMALL.width, SMALL.height, "mapped")


async def test_a_picture_is_never_torn_while_the_screen_is_being_drawn():
    desktop = LocalDesktop()
    await desktop.reset(DesktopSpec("plain", 1920, 1200))
    session, performer = desktop._parts()
    over = threading.Event()

    def paint() -> None:
        """One request after the other fills the screen with another colour; each takes the server about as long as a copy takes."""
        painter = XConnection(session.x_server.name, session.x_server.cookie)
        core, window, context = painter.core, painter.x.generate_id(), painter.x.generate_id()
        core.CreateWindow(
            0, window, painter.root, 0, 0, 1920, 1200, 0, WindowClass.InputOutput, 0, CW.OverrideRedirect, [1]
        )
        core.MapWindow(window)
        core.CreateGC(context, window, GC.Foreground, [1])
        colour = 1
        while not over.is_set():
            colour = colour % 250 + 1
            core.ChangeGC(context, GC.Foreground, [colour * 0x010101])
            core.PolyFillRectangle(window, context, 1, [RECTANGLE.synthetic(0, 0, 1920, 1200)])
            painter.sync()
            over.wait(0.001)
        painter.close()

    painting = threading.Thread(target=paint)
    painting.start()
    try:
        for _ in range(round(limit(100))):  # until the painter's window covers the screen
            if len(np.unique(await asyncio.to_thread(performer.settler.capture))) == 1:
                break
            await asyncio.sleep(0.05)
        pictures = [await asyncio.to_thread(performer.settler.capture) for _ in range(60)]
    finally:
        over.set()
        painting.join()
        await desktop.close()
    assert [len(np.unique(picture)) for picture in pictures] == [1] * 60
    assert len({int(picture[0, 0]) for picture in pictures}) > 3


def segments() -> set[str]:
    """Numbers of this machine's shared segments."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


WITHOUT_A_FILE = """#!/bin/bash
kept=()
while [ $# -gt 0 ]; do
    [ "$1" = -fbdir ] && shift 2 && continue
    kept+=("$1")
    shift
done
exec /usr/bin/Xvfb "${kept[@]}"
"""


@pytest.fixture
def open_folder():
    """A folder that every user of this machine may read: X servers have a user id of their own."""
    with tempfile.TemporaryDirectory(prefix="deskhand-test-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_a_server_whose_memory_is_in_no_file_shares_it(monkeypatch, open_folder):
    (open_folder / "Xvfb").write_text(WITHOUT_A_FILE)
    (open_folder / "Xvfb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    before = segments()
    desktop = LocalDesktop()
    try:
        await desktop.reset(SMALL)
        assert isinstance(desktop._session.screen, SharedMemoryReader)
        empty = await desktop.observe()
        await open_editor(desktop)
        frame = await desktop.perform([Type("some text")], action_id="typed")
        assert frame.sha256 != empty.sha256
        assert frame.settle_reason == "quiet"
    finally:
        await desktop.close()
    assert segments() <= before


async def test_a_server_that_shares_nothing_is_asked(desktop):
    session = desktop._session
    with pytest.raises(FrameError, match="without MIT-SHM"):
        open_screen_reader(session.x_server, session.connection, SMALL.width, SMALL.height, "shared")


def test_what_is_written_by_one_side_is_read_by_the_other_and_gone_with_both():
    segment = Segment(4096, None)
    again = sysv_ipc.attach(segment.id)
    segment.remove()
    segment.bytes[:4] = (1, 2, 3, 4)
    assert again.read(4) == b"\1\2\3\4"
    assert str(segment.id) in segments()
    segment.close()
    segment.close()
    again.detach()
    assert str(segment.id) not in segments()
