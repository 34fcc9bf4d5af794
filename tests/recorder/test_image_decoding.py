"""Screenshots have the same pixels whichever library decodes them."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from typing import Any

import imagecodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageCms
from PIL.PngImagePlugin import PngInfo
from recording import picture

from deskhand.recorder import image_decoding
from deskhand.recorder.image_decoding import decode_rgb
from deskhand.recorder.request_errors import InvalidRequestError


def _png_with(kind: str) -> bytes:
    """Return an 8-bit RGB PNG with what may change how decoders read its pixels."""
    chunks, options = PngInfo(), dict[str, Any]()
    if kind == "gamma":
        chunks.add(b"gAMA", struct.pack(">I", 20_000))
    elif kind == "significant bits":
        chunks.add(b"sBIT", bytes((5, 6, 5)))
    elif kind == "color profile":
        options["icc_profile"] = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    elif kind == "transparent color":
        options["transparency"] = picture(5).getpixel((0, 0))
    elif kind == "16 bits":
        rows = b"".join(b"\0" + (np.asarray(row, ">u2") * 257).tobytes() for row in np.asarray(picture(5)))
        head = struct.pack(">IIBBBBB", picture(5).width, picture(5).height, 16, 2, 0, 0, 0)
        parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
        blocks = [struct.pack(">I", len(data)) + name + data for name, data in parts]
        return b"\x89PNG\r\n\x1a\n" + b"".join(block + struct.pack(">I", zlib.crc32(block[4:])) for block in blocks)
    buffer = io.BytesIO()
    picture(5).save(buffer, format="PNG", pnginfo=chunks, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["", "gamma", "significant bits", "color profile", "transparent color", "16 bits"])
def test_libpng_and_pillow_give_the_same_pixels(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[bool]()

    def counted(encoded: bytes) -> np.ndarray:
        decoded.append(True)
        return imagecodecs.png_decode(encoded)

    monkeypatch.setattr(image_decoding, "png_decode", counted)
    encoded = _png_with(kind)
    got = decode_rgb(encoded, max_pixels=10**6)
    assert decoded == [True] * (kind not in ("transparent color", "16 bits"))
    monkeypatch.setattr(image_decoding, "png_decode", None)
    assert np.array_equal(got, decode_rgb(encoded, max_pixels=10**6))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_libpng_and_pillow_never_disagree_on_damaged_bytes(data: st.DataObject) -> None:
    encoded = bytearray(_png_with(""))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    del encoded[data.draw(st.integers(len(encoded) // 2, len(encoded))) :]
    found = list[np.ndarray]()
    for decoder in (imagecodecs.png_decode, None):
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(InvalidRequestError):
            patch.setattr(image_decoding, "png_decode", decoder)
            found.append(decode_rgb(bytes(encoded), max_pixels=10**6))
    assert len(found) < 2 or np.array_equal(*found)
