"""Screens on disk."""

import hashlib
import io
import threading

import numpy as np
import pytest
from PIL import Image

from deskhand.errors import InfrastructureError
from deskhand.store import frames as module
from deskhand.store.frames import Frames
from deskhand.store.pictures import Pictures


def named(pixels: np.ndarray) -> tuple[str, np.ndarray]:
    return hashlib.sha256(pixels.tobytes()).hexdigest(), pixels


def screen(seed: int, height: int = 9, width: int = 7) -> tuple[str, np.ndarray]:
    return named(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def changed(pixels: np.ndarray, top: int, colour: int) -> tuple[str, np.ndarray]:
    pixels = pixels.copy()
    pixels[top : top + 8, :40] = colour
    return named(pixels)


def test_a_screen_is_kept_once_and_read_back_to_the_pixel(tmp_path):
    frames = Frames(tmp_path)
    name, pixels = screen(1)
    assert name not in frames
    assert frames.size(name) is None
    frames.put(name, pixels)
    written = frames.path(name).stat().st_mtime_ns
    frames.put(name, np.zeros_like(pixels))
    Frames(tmp_path).put(name, np.zeros_like(pixels))
    assert frames.path(name).stat().st_mtime_ns == written
    assert (frames.rgb(name) == pixels).all()
    assert (np.asarray(Image.open(io.BytesIO(frames.png(name)))) == pixels).all()
    assert frames.size(name) == (7, 9)
    assert list(frames) == [name]
    assert not list(tmp_path.glob("**/*.partial"))


def test_a_screen_that_is_missing_damaged_or_another_is_an_outage(tmp_path):
    frames = Frames(tmp_path)
    name, pixels = screen(1)
    with pytest.raises(InfrastructureError, match="missing"):
        frames.rgb(name)
    frames.put(name, pixels)
    whole = frames.path(name).read_bytes()
    other, other_pixels = screen(2)
    frames.put(other, other_pixels)
    frames.path(name).write_bytes(frames.path(other).read_bytes())
    with pytest.raises(InfrastructureError, match="does not hold the pixels"):
        frames.rgb(name)
    for damaged in (whole[: len(whole) // 2], whole[:20], b"", b"\x89PNG" + whole[4:], whole[:-9] + b"\0" * 9):
        frames.path(name).write_bytes(damaged)
        with pytest.raises(InfrastructureError, match="cannot be read"):
            frames.rgb(name)
        with pytest.raises(InfrastructureError, match="cannot be read"):
            frames.png(name)


def test_a_small_change_takes_little_room_and_needs_the_key_screen_only(tmp_path):
    frames = Frames(tmp_path)
    key, pixels = screen(3, 200, 300)
    frames.put(key, pixels)
    kept = {key: pixels}
    for step in range(20):
        name, later = changed(pixels, 8 * step, step)
        frames.put(name, later)
        kept[name] = later
        assert frames.path(name).stat().st_size < frames.path(key).stat().st_size / 20
    fresh = Frames(tmp_path)
    for name, expected in kept.items():
        assert (fresh.rgb(name) == expected).all()
    frames.path(key).unlink()
    with pytest.raises(InfrastructureError, match="missing"):
        Frames(tmp_path).rgb(name)


def test_what_a_screen_builds_on_is_itself_whole(tmp_path):
    """However the screens follow each other: a chain would make reading slow and one lost file fatal to many."""
    frames = Frames(tmp_path)
    _, pixels = screen(4, 200, 300)
    names = []
    for step in range(25):
        name, pixels = changed(pixels, 8 * step % 200, step)  # each differs from the one before, ever more from the first
        frames.put(name, pixels)
        names.append(name)
    bases = {frames._read(name)[1] for name in names} - {None}
    assert bases
    assert {frames._read(base)[1] for base in bases} == {None}
    with pytest.raises(InfrastructureError, match="no key screen"):
        Frames(tmp_path)._key(next(name for name in names if frames._read(name)[1]))


def test_another_size_or_another_screen_is_a_key_screen_of_its_own_and_few_are_held_in_memory(tmp_path):
    frames = Frames(tmp_path)
    for seed in range(12):
        frames.put(*screen(seed, 64 + seed % 2, 80))
    assert {frames._read(name)[1] for name in frames} == {None}
    assert len(frames._keys) == module.KEYS_IN_MEMORY
    assert all(frames.rgb(name) is not None for name in frames)


def test_several_threads_may_keep_the_same_screens(tmp_path):
    frames = Frames(tmp_path)
    _, first = screen(5, 120, 160)
    screens = [changed(first, 8 * step, step) for step in range(12)]
    threads = [threading.Thread(target=lambda: [frames.put(*one) for one in screens]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fresh = Frames(tmp_path)
    assert sorted(fresh) == sorted(name for name, _ in screens)
    assert all((fresh.rgb(name) == pixels).all() for name, pixels in screens)


def test_exported_pictures_are_png_files_of_the_same_name(tmp_path):
    frames, pictures = Frames(tmp_path / "run"), Pictures(tmp_path / "export")
    name, pixels = screen(6)
    frames.put(name, pixels)
    pictures.put(name, frames.png(name))
    assert (pictures.rgb(name) == pixels).all()
    assert list(pictures) == [name]
    pictures.path(name).write_bytes(b"no picture")
    with pytest.raises(InfrastructureError, match="cannot be read"):
        pictures.rgb(name)
    pictures.path(name).unlink()
    with pytest.raises(InfrastructureError, match="missing"):
        pictures.rgb(name)
