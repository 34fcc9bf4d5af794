"""Pixels read from an X window dump file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from deskhand.desktop.local.framebuffer import Framebuffer, PixelHash, changed_bbox, check_not_black
from deskhand.errors import FrameError

WIDTH, HEIGHT, COLORS = 640, 400, 256


def dump(path, *, width=WIDTH, height=HEIGHT, bits=32, version=7, byte_order=0, missing=0):
    """A dump file with a padding of two pixels at the end of each row."""
    line = (width + 2) * 4
    words = [160, version, 2, 24, width, height, 0, byte_order, 32, 0, 32, bits, line, 4]
    words += [0xFF0000, 0xFF00, 0xFF, 8, COLORS, COLORS, width, height, 0, 0, 0]
    header = struct.pack(">25I", *words).ljust(160, b"\0")
    path.write_bytes(header + bytes(COLORS * 12) + bytes(line * height - missing))
    return np.memmap(path, dtype="<u4", mode="r+", offset=160 + COLORS * 12) if not missing else None


def test_the_fourth_byte_is_zero_and_padding_is_dropped(tmp_path):
    pixels = dump(tmp_path / "screen")
    pixels.reshape(HEIGHT, WIDTH + 2)[:] = 0xAB123456
    copy = Framebuffer(tmp_path / "screen", WIDTH, HEIGHT).copy()
    assert copy.shape == (HEIGHT, WIDTH)
    assert (copy == 0x00123456).all()


@pytest.mark.parametrize(
    "wrong", [{"width": 641}, {"height": 399}, {"bits": 16}, {"version": 6}, {"byte_order": 1}, {"missing": 4}]
)
def test_a_screen_of_another_format_or_size_is_rejected(tmp_path, wrong):
    dump(tmp_path / "screen", **wrong)
    with pytest.raises(FrameError):
        Framebuffer(tmp_path / "screen", WIDTH, HEIGHT)


def test_a_black_screen_is_rejected():
    pixels = np.zeros((HEIGHT, WIDTH), np.uint32)
    with pytest.raises(FrameError, match="black"):
        check_not_black(pixels)
    pixels[-1, -1] = 1
    check_not_black(pixels)


def test_the_changed_bbox_is_tight_and_half_open():
    before = np.ones((HEIGHT, WIDTH), np.uint32)
    after = before.copy()
    assert changed_bbox(before, after) is None
    after[10, 20] = 5
    after[30, 7] = 5
    assert changed_bbox(before, after) == (7, 10, 21, 31)
    assert changed_bbox(None, after) == (0, 0, WIDTH, HEIGHT)


def test_the_hash_detects_single_bits_and_swapped_pixels():
    make = PixelHash(WIDTH, HEIGHT)
    pixels = np.arange(WIDTH * HEIGHT, dtype=np.uint32).reshape(HEIGHT, WIDTH)
    first = make(pixels)
    exchanged = pixels.copy()
    exchanged[0, 0], exchanged[0, 1] = pixels[0, 1], pixels[0, 0]
    bit = pixels.copy()
    bit[100, 100] ^= 1
    assert len({first, make(exchanged), make(bit)}) == 3
    assert PixelHash(WIDTH, HEIGHT)(pixels.copy()) == first == "4abe1bc0f80703f0"


def test_closing_a_framebuffer_frees_its_descriptor_and_keeps_copies(tmp_path):
    live = dump(tmp_path / "screen")
    live[:] = 7
    framebuffer = Framebuffer(tmp_path / "screen", WIDTH, HEIGHT)
    copy = framebuffer.copy()
    del live
    assert any(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines())
    framebuffer.close()
    assert not any(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert (copy == 7).all()
