"""Screenshots of remote machines: what is too large or of another kind is refused before its pixels are decoded."""

from __future__ import annotations

import struct
import zlib

import pytest

from deskhand.desktop.remote.screenshots import decode_screenshot
from deskhand.errors import FrameError


def png(width: int, height: int, depth: int, color: int, pixels: bytes) -> bytes:
    """A PNG whose checksums are right, whatever `pixels` are."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height", "depth", "color", "size", "message"),
    [
        (8192, 8192, 16, 6, (64, 48), "8192x8192 pixels, expected 64x48"),
        (64, 49, 8, 2, (64, 48), "64x49 pixels, expected 64x48"),
        (8193, 8192, 8, 2, None, "8193x8192 pixels is too large"),
        (64, 48, 16, 0, (64, 48), "expected 8 bits per channel"),
    ],
)
def test_a_foreign_image_is_refused_before_its_pixels_are_decoded(width, height, depth, color, size, message):
    undecodable = b"not a deflated stream"
    with pytest.raises(FrameError, match=message):
        decode_screenshot(png(width, height, depth, color, undecodable), size, "GET /screenshot")
    with pytest.raises(FrameError, match="truncated image"):
        decode_screenshot(png(64, 48, 8, 2, undecodable), (64, 48), "GET /screenshot")


def test_an_image_of_the_right_kind_is_decoded():
    rows = b"".join(b"\0" + bytes([10, 20, 30]) * 64 for _ in range(48))
    decoded = decode_screenshot(png(64, 48, 8, 2, zlib.compress(rows)), (64, 48), "GET /screenshot")
    assert decoded.shape == (48, 64, 4)
    assert decoded[0, 0].tolist() == [30, 20, 10, 255]
