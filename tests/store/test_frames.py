"""Screens on disk."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from deskhand.errors import InfrastructureError
from deskhand.store.frames import Frames


def screen(seed: int) -> tuple[str, bytes, np.ndarray]:
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return hashlib.sha256(pixels.tobytes()).hexdigest(), buffer.getvalue(), pixels


def test_a_screen_is_kept_once_and_read_back_to_the_pixel(tmp_path):
    frames = Frames(tmp_path)
    name, png, pixels = screen(1)
    assert name not in frames
    frames.put(name, png)
    written = frames.path(name).stat().st_mtime_ns
    frames.put(name, b"other bytes of the same pixels")
    Frames(tmp_path).put(name, b"other bytes of the same pixels")
    assert frames.path(name).stat().st_mtime_ns == written
    assert (frames.rgb(name) == pixels).all()
    assert list(frames) == [name]
    assert not list(tmp_path.glob("**/*.partial"))


def test_a_screen_that_is_missing_damaged_or_another_is_an_outage(tmp_path):
    frames = Frames(tmp_path)
    name, png, _ = screen(1)
    with pytest.raises(InfrastructureError, match="missing"):
        frames.rgb(name)
    frames.put(name, png)
    frames.path(name).write_bytes(screen(2)[1])
    with pytest.raises(InfrastructureError, match="does not hold the pixels"):
        frames.rgb(name)
    frames.path(name).write_bytes(png[: len(png) // 2])
    with pytest.raises(InfrastructureError, match="cannot be read"):
        frames.rgb(name)
