"""Screen readers and cursor overlay."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from desktops import embedded, point_on
from patience import limit
from xcffib.xproto import CW, GC, RECTANGLE, WindowClass

from deskhand.actions.ops import Move, Type
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.framebuffer import Framebuffer, PointerImage, draw_cursor
from deskhand.desktop.local.screen_reader import GetImageReader, SharedMemoryReader, open_screen_reader
from deskhand.desktop.local.x_connection import XConnection
from deskhand.errors import FrameError

SMALL = DesktopSpec("plain", 320, 240)


at = point_on(SMALL)


async def open_editor(desktop):
    await desktop.launch(["l3afpad"])
    await desktop.wait_window("l3afpad")
    await desktop.observe()


@pytest.mark.parametrize("place", [(150, 120), (5, 5), (0, 0), (319, 239), (318, 0)])
async def test_the_cursor_is_drawn_as_by_the_server(desktop, place):
    await open_editor(desktop)
    frame = await desktop.perform([Type("some text"), Move(at(*place))], action_id="there")
    connection, screen = desktop._session.connection, desktop._session.screen
    hidden = screen.copy()
    connection._fixes.ShowCursor(connection.root)
    connection.sync()
    drawn = screen.copy()
    connection.hide_pointer()
    hidden, drawn = (each.view(np.uint8).reshape(frame.bgrx.shape)[:, :, :3] for each in (hidden, drawn))
    different = frame.bgrx[:, :, :3].astype(int) - drawn
    assert np.abs(different).max() <= 1  # the server rounds half-transparent edges its own way
    assert frame.cursor == place
    assert (frame.without_cursor().bgrx[:, :, :3] == hidden).all()


async def test_moving_the_pointer_changes_no_pixel_below_it(desktop):
    first = await desktop.perform([Move(at(50, 50))], action_id="a")
    second = await desktop.perform([Move(at(250, 150))], action_id="b")
    assert first.sha256 != second.sha256
    assert first.without_cursor().sha256 == second.without_cursor().sha256
    assert first.without_cursor().without_cursor().png() == second.without_cursor().png()


def test_the_cursor_is_clipped_at_the_edge():
    argb = np.full((6, 4), 0xFF112233, np.uint32)
    for x, y, covered in ((0, 0, 2), (19, 9, 18), (10, 5, 24), (-8, 2, 0), (40, 2, 0)):
        pixels = np.full((10, 20), 0x445566, np.uint32)
        under = draw_cursor(pixels, PointerImage(x, y, 2, 5, argb))
        assert np.count_nonzero(pixels == 0x112233) == (under[2].size if under else 0) == covered
        if under:
            left, top, patch = under
            pixels[top : top + patch.shape[0], left : left + patch.shape[1]] = patch
        assert (pixels == 0x445566).all()


def test_a_translucent_cursor_is_blended():
    pixels = np.full((2, 2), 0x0000C8, np.uint32)
    draw_cursor(pixels, PointerImage(0, 0, 0, 0, np.array([[0x80008000, 0]], np.uint32)))
    assert [hex(value) for value in pixels.reshape(-1)] == ["0x8064", "0xc8", "0xc8", "0xc8"]


READERS = [(None, Framebuffer), ("server", GetImageReader), ("shared", SharedMemoryReader)]


@pytest.mark.parametrize(("way", "kind"), READERS)
@pytest.mark.parametrize(("width", "height"), [(256, 192), (1001, 703), (1920, 1200)])
async def test_every_reader_returns_the_same_pixels_at_any_size(width, height, way, kind):
    async with embedded(DesktopSpec("dark", width, height), capture=way) as desktop:
        session = desktop._session
        assert isinstance(session.screen, kind)
        frame = await desktop.observe()
        assert frame.size == (width, height)
        assert frame.bgrx.flags.writeable is False
        assert tuple(frame.rgb()[0, 0]) == (0x38, 0x40, 0x48)
        await open_editor(desktop)
        mapped = open_screen_reader(session.x_server, session.connection, width, height, "mapped")
        assert (mapped.copy() == session.screen.copy()).all()
        assert len(np.unique(mapped.copy())) > 10
        mapped.close()


async def test_an_unmappable_framebuffer_falls_back_to_the_server(desktop, tmp_path):
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


async def test_captures_are_not_torn_during_drawing():
    over = threading.Event()

    def paint(session) -> None:
        """Fill the screen with one color after another; each fill takes about as long as a copy."""
        painter = XConnection(session.x_server.name, session.x_server.cookie)
        core, window, context = painter.core, painter.x.generate_id(), painter.x.generate_id()
        unmanaged = (WindowClass.InputOutput, 0, CW.OverrideRedirect, [1])
        core.CreateWindow(0, window, painter.root, 0, 0, 1920, 1200, 0, *unmanaged)
        core.MapWindow(window)
        core.CreateGC(context, window, GC.Foreground, [1])
        color = 1
        while not over.is_set():
            color = color % 250 + 1
            core.ChangeGC(context, GC.Foreground, [color * 0x010101])
            core.PolyFillRectangle(window, context, 1, [RECTANGLE.synthetic(0, 0, 1920, 1200)])
            painter.sync()
            over.wait(0.001)
        painter.close()

    async with embedded(DesktopSpec("plain", 1920, 1200)) as desktop:
        session, executor = desktop._parts()
        painting = threading.Thread(target=paint, args=[session], daemon=True)
        painting.start()
        for _ in range(round(limit(100))):  # until the painter's window covers the screen
            if len(np.unique(await asyncio.to_thread(executor.settler.capture))) == 1:
                break
            await asyncio.sleep(0.05)
        pictures = [await asyncio.to_thread(executor.settler.capture) for _ in range(60)]
        over.set()
        painting.join()
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


async def test_a_server_without_a_framebuffer_file_uses_shared_memory(monkeypatch, open_folder):
    (open_folder / "Xvfb").write_text(WITHOUT_A_FILE)
    (open_folder / "Xvfb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    before = segments()
    async with embedded(SMALL) as desktop:
        assert isinstance(desktop._session.screen, SharedMemoryReader)
        empty = await desktop.observe()
        await open_editor(desktop)
        frame = await desktop.perform([Type("some text")], action_id="typed")
        assert frame.sha256 != empty.sha256
        assert frame.settle_reason == "quiet"
    assert segments() <= before


async def test_a_server_without_shared_memory_uses_get_image(desktop):
    session = desktop._session
    with pytest.raises(FrameError, match="without MIT-SHM"):
        open_screen_reader(session.x_server, session.connection, SMALL.width, SMALL.height, "shared")
