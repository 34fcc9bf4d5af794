"""Idempotency cache: frames of recent actions."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields

import numpy as np
import pytest

from deskhand.desktop.base import Frame
from deskhand.desktop.local.idempotency_cache import IdempotencyCache
from deskhand.errors import DeliveryUnknown


def frame(sequence: int, width: int = 1280, height: int = 720) -> Frame:
    pixels = np.full((height, width, 4), 200, np.uint8)
    pixels[:20, :40] = np.random.default_rng(sequence).integers(0, 256, (20, 40, 4), dtype=np.uint8)
    pixels.flags.writeable = False
    under = (3, 4, pixels[:20, :20].copy())
    return Frame(pixels, sequence, f"hash {sequence}", 12.5, "moving", (1, 2, 3, 4), (5, 6), ((7, 8, 9, 10),), under)


def test_cached_frames_are_identical():
    remembered, frames = IdempotencyCache(8), [frame(number) for number in range(8)]
    for number, one in enumerate(frames):
        remembered.begin(str(number))
        remembered.finish(str(number), one)
    assert remembered.get("7") is frames[7]
    for number, one in enumerate(frames):
        again = remembered.get(str(number))
        assert (again.bgrx == one.bgrx).all()
        assert not again.bgrx.flags.writeable
        assert (again.without_cursor().bgrx == one.without_cursor().bgrx).all()
        for name in {"size", "sha256", *(field.name for field in fields(one))} - {"bgrx", "under_cursor"}:
            assert getattr(again, name) == getattr(one, name)


def test_unfinished_actions_stay_unknown_and_the_oldest_are_evicted():
    remembered = IdempotencyCache(3)
    remembered.begin("lost")
    for number in range(2):
        remembered.begin(str(number))
        remembered.finish(str(number), frame(number, 40, 30))
    with pytest.raises(DeliveryUnknown, match="lost"):
        remembered.get("lost")
    remembered.begin("2")
    assert remembered.get("lost") is None
    remembered.clear()
    assert remembered.get("0") is None


def test_64_cached_screens_use_less_memory_than_six_raw_ones():
    tracemalloc.start()
    try:
        remembered = IdempotencyCache(64)
        for number in range(64):
            remembered.begin(str(number))
            remembered.finish(str(number), frame(number))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 6 * 1280 * 720 * 4
