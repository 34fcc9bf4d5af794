"""Screenshots on disk."""

import hashlib
import io
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from deskhand.errors import InfrastructureError
from deskhand.store import frame_delta
from deskhand.store import frames as module
from deskhand.store.frames import Frames


def named(pixels: np.ndarray) -> tuple[str, np.ndarray]:
    return hashlib.sha256(pixels.tobytes()).hexdigest(), pixels


def screen(seed: int, height: int = 9, width: int = 7) -> tuple[str, np.ndarray]:
    return named(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def changed(pixels: np.ndarray, top: int, color: int) -> tuple[str, np.ndarray]:
    pixels = pixels.copy()
    pixels[top : top + 8, :40] = color
    return named(pixels)


def base_of(frames: Frames, name: str) -> str | None:
    """The screen from which a stored one differs; None if it is stored whole."""
    base = frames._file(name)[3]
    return base.hex() if any(base) else None


def test_a_screen_is_stored_once_and_read_back_exactly(tmp_path):
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
    with pytest.raises(InfrastructureError, match="do not match the file name"):
        frames.rgb(name)
    for damaged in (whole[: len(whole) // 2], whole[:20], b"", b"\x89PNG" + whole[4:], whole[:-9] + b"\0" * 9):
        frames.path(name).write_bytes(damaged)
        with pytest.raises(InfrastructureError, match="cannot be read"):
            frames.rgb(name)
        with pytest.raises(InfrastructureError, match="cannot be read"):
            frames.png(name)


def test_a_small_change_takes_little_room_and_is_read_back_by_another_reader(tmp_path):
    frames = Frames(tmp_path)
    first, pixels = screen(3, 200, 300)
    frames.put(first, pixels)
    kept = {first: pixels}
    for step in range(20):
        name, later = changed(pixels, 8 * step, step)
        frames.put(name, later)
        kept[name] = later
        if base_of(frames, name):
            assert frames.path(name).stat().st_size < frames.path(first).stat().st_size / 20
    assert sum(base_of(frames, name) is None for name in kept) <= 3
    for name, expected in kept.items():
        assert (Frames(tmp_path).rgb(name) == expected).all()


def chain(frames: Frames, name: str) -> list[str]:
    """The screen and all that it builds on."""
    found: list[str] = []
    following: str | None = name
    while following is not None:
        found.append(following)
        following = base_of(frames, following)
    return found


def test_few_files_are_read_for_one_screen_in_any_order_of_screens(tmp_path):
    frames = Frames(tmp_path)
    _, pixels = screen(4, 200, 300)
    names = []
    for step in range(60):
        name, pixels = changed(pixels, 8 * step % 200, step)  # differs from the last, and ever more from the first
        frames.put(name, pixels)
        names.append(name)
    lengths = [len(chain(frames, name)) for name in names]
    assert max(lengths) == module.MAX_DELTA_CHAIN + 1
    assert lengths.count(1) <= 60 / module.MAX_DELTA_CHAIN


def test_a_screen_whose_base_is_lost_or_another_is_an_outage(tmp_path):
    frames = Frames(tmp_path)
    first, pixels = screen(3, 200, 300)
    frames.put(first, pixels)
    name, later = changed(pixels, 8, 1)
    frames.put(name, later)
    other, others = screen(8, 64, 80)
    frames.put(other, others)
    assert chain(frames, name) == [name, first]
    whole = frames.path(first).read_bytes()
    frames.path(first).write_bytes(frames.path(other).read_bytes())
    with pytest.raises(InfrastructureError, match="has another size"):
        Frames(tmp_path).rgb(name)
    frames.path(first).write_bytes(frames.path(name).read_bytes())  # a ring
    with pytest.raises(InfrastructureError, match="cyclic or too long"):
        Frames(tmp_path).rgb(name)
    frames.path(first).unlink()
    with pytest.raises(InfrastructureError, match="missing"):
        Frames(tmp_path).rgb(name)
    frames.path(first).write_bytes(whole)
    assert (Frames(tmp_path).rgb(name) == later).all()


def test_threads_store_different_screens_at_once_and_one_screen_once(tmp_path, monkeypatch):
    frames, gate, compressed = Frames(tmp_path), threading.Barrier(4, timeout=60), []
    screens = [screen(seed, 64, 80) for seed in range(4)]
    compressor = module.zstandard.ZstdCompressor

    class Waiting:
        def __init__(self, **options):
            self.real = compressor(**options)

        def compress(self, body):
            compressed.append(len(body))
            gate.wait()  # only passes if four threads compress at once
            return self.real.compress(body)

    monkeypatch.setattr(module.zstandard, "ZstdCompressor", Waiting)
    threads = [threading.Thread(target=frames.put, args=screens[number % 4]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compressed) == 4
    monkeypatch.undo()
    assert all((frames.rgb(name) == pixels).all() for name, pixels in screens)


def test_who_waits_for_a_screen_that_cannot_be_written_gets_the_error_and_may_try_again(tmp_path, monkeypatch):
    frames, (name, pixels) = Frames(tmp_path), screen(1)
    started, go, raised = threading.Event(), threading.Event(), []

    def full(*_):
        started.set()
        go.wait(60)
        raise OSError("disk full")

    def put():
        try:
            frames.put(name, pixels)
        except OSError as error:
            raised.append(str(error))

    monkeypatch.setattr(frames, "_write", full)
    threads = [threading.Thread(target=put) for _ in range(2)]
    threads[0].start()
    assert started.wait(60)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join()
    assert raised == ["disk full"] * 2
    monkeypatch.undo()
    frames.put(name, pixels)
    assert (frames.rgb(name) == pixels).all()


def test_another_size_or_another_screen_is_stored_whole_and_few_are_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED_BYTES", 5 * 64 * 80 * 3)
    frames = Frames(tmp_path)
    for seed in range(12):
        frames.put(*screen(seed, 64 + seed % 2, 80))
    assert {base_of(frames, name) for name in frames} == {None}
    assert len(frames._recent) <= 5
    assert all(frames.rgb(name) is not None for name in frames)


@given(
    hnp.arrays(
        np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=40).map(lambda shape: (*shape[:2], 3))
    ),
    st.data(),
)
def test_applying_the_delta_gives_the_screen(before, data):
    after = before.copy()
    for _ in range(data.draw(st.integers(0, 4))):
        row, column = data.draw(st.integers(0, before.shape[0] - 1)), data.draw(st.integers(0, before.shape[1] - 1))
        after[row : row + 3, column : column + 5] = data.draw(st.integers(0, 255))
    cut, pixels = frame_delta.encode_delta(before, after)
    assert cut.shape == frame_delta.grid(before.shape[1], before.shape[0])
    assert (frame_delta.apply_delta(before, cut, pixels) == after).all()
    with pytest.raises(ValueError, match="bytes of tile pixels"):
        frame_delta.apply_delta(before, cut, pixels + b"x")


def test_several_threads_may_store_the_same_screens(tmp_path):
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
