"""Looked-up patches are bit-identical to the image processor's; unsupported processors are used directly."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import picture
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as theirs
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.models import forward
from deskhand.models.load import load_processors
from deskhand.recorder import fast_patches
from deskhand.recorder.fast_patches import PatchExtractor, StoredPatches
from deskhand.types import Checksum

PROCESSORS: dict[str, Any] = {
    "the policy in the box": load_processors("tiny")[1],
    "Qwen2.5-VL": Qwen2VLImageProcessorPil(),
    "small": Qwen2VLImageProcessorPil(patch_size=4, size={"shortest_edge": 64, "longest_edge": 64 * 64}),
    "one frame": Qwen2VLImageProcessorPil(
        temporal_patch_size=1, merge_size=1, patch_size=8, size={"shortest_edge": 8, "longest_edge": 10**6}
    ),
}
smart_resize = theirs.smart_resize
"""Found in this module for the processors that are defined in it."""
MAKERS = {name: PatchExtractor(processor) for name, processor in PROCESSORS.items()}


@pytest.mark.parametrize("name", PROCESSORS)
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400) | st.sampled_from((32, 56, 112, 320, 336)), st.integers(1, 400), st.integers(0, 3))
def test_values_and_grid_are_the_processors(name: str, width: int, height: int, seed: int) -> None:
    shown, processor = picture(seed, width, height), PROCESSORS[name]
    assert MAKERS[name].fast
    if max(width, height) / min(width, height) > 200:
        with pytest.raises(ValueError, match="aspect ratio"):
            MAKERS[name].extract(np.asarray(shown))
        return
    want = processor(images=[shown], return_tensors="np")
    kept, grid = MAKERS[name].extract(np.asarray(shown))
    values = MAKERS[name].lookup.values(kept)
    assert list(grid) == want["image_grid_thw"][0].tolist()
    assert kept.dtype == np.uint8
    assert values.dtype == np.float32
    assert values.shape == MAKERS[name].lookup.shape(kept)
    assert values.flags.c_contiguous
    assert np.array_equal(values, want["pixel_values"])
    table_CV = torch.from_numpy(MAKERS[name].lookup.table_CV)
    on_device = forward.expand_on_device(torch.from_numpy(kept), table_CV, MAKERS[name].lookup.frames)
    assert np.array_equal(on_device.numpy(), values)


class Other(Qwen2VLImageProcessorPil):
    """What it does to a value depends on where it stands."""

    def normalize(self, image: np.ndarray, *given: Any, **named: Any) -> np.ndarray:
        return super().normalize(image, *given, **named) * np.linspace(1, 2, image.shape[-1])


class Flipped(Qwen2VLImageProcessorPil):
    """It resizes in another way."""

    def resize(self, image: np.ndarray, *given: Any, **named: Any) -> np.ndarray:
        return super().resize(image[..., ::-1], *given, **named)


@pytest.mark.parametrize("kind", [Other, Flipped])
def test_an_unsupported_image_processor_is_used_unchanged(kind: type[Qwen2VLImageProcessorPil]) -> None:
    processor = kind(patch_size=4, size={"shortest_edge": 64, "longest_edge": 64 * 64})
    maker = PatchExtractor(processor)
    assert not maker.fast
    kept, _ = maker.extract(np.asarray(picture(1, 50, 40)))
    values = maker.lookup.values(kept)
    assert values.shape == maker.lookup.shape(kept)
    assert np.array_equal(values, processor(images=[picture(1, 50, 40)], return_tensors="np")["pixel_values"])


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("is_row_resize", [True, False])
def test_a_wrong_resize_is_noticed_whichever_sides_it_resizes(
    name: str, is_row_resize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    resize = fast_patches._resize

    def wrong(rgb_HWC: np.ndarray, width: int, height: int, resample: int) -> np.ndarray:
        resized = resize(rgb_HWC, width, height, resample)
        return resized ^ np.uint8(resized.shape != rgb_HWC.shape and (rgb_HWC.shape[1] == width) == is_row_resize)

    monkeypatch.setattr(fast_patches, "_resize", wrong)
    assert not PatchExtractor(PROCESSORS[name]).fast


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("view", ["read-only", "reversed channels", "part of a larger image"])
def test_any_memory_layout_gives_the_same_patches(name: str, view: str) -> None:
    pixels = np.asarray(picture(5, 224, 100))
    shown = {
        "read-only": pixels,
        "reversed channels": pixels[..., ::-1].copy()[..., ::-1],
        "part of a larger image": np.pad(pixels, ((3, 3), (5, 5), (0, 0)))[3:-3, 5:-5],
    }[view]
    assert np.array_equal(shown, pixels)
    assert np.array_equal(MAKERS[name].extract(shown)[0], MAKERS[name].extract(pixels.copy())[0])


@pytest.mark.parametrize("name", PROCESSORS)
def test_stored_patches_can_be_pickled_for_processes_without_the_processor(name: str) -> None:
    kept, _ = MAKERS[name].extract(np.asarray(picture(2, 90, 70)))
    prepared = StoredPatches(MAKERS[name].lookup, kept, Checksum())
    sent = pickle.dumps(prepared)
    assert b"transformers" not in sent
    assert np.array_equal(np.asarray(pickle.loads(sent)), np.asarray(prepared))
