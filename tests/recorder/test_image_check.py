"""The self-test of the preprocessing notices what engine and trainer would agree on."""

from __future__ import annotations

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.errors import HealthError
from deskhand.recorder import images as images_module
from deskhand.recorder.fast_patches import PatchExtractor
from deskhand.recorder.image_check import check_preprocessing
from deskhand.recorder.images import ImageCache


def processor():
    return Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 64 * 64}
    )


def test_sound_preprocessing_passes_and_leaves_the_cache_as_it_was():
    images = ImageCache(processor())
    check_preprocessing(images, processor())
    assert len(images) == 0


def test_swapped_channels_are_noticed_and_named(monkeypatch):
    decode = images_module.decode_rgb

    def swapped(encoded, **options):
        return np.ascontiguousarray(decode(encoded, **options)[..., ::-1])

    monkeypatch.setattr(images_module, "decode_rgb", swapped)
    with pytest.raises(HealthError, match=r"invariant image_preprocessing: .*red and blue are swapped"):
        check_preprocessing(ImageCache(processor()), processor())


def test_channels_swapped_in_the_patches_are_noticed(monkeypatch):
    images, extract = ImageCache(processor()), PatchExtractor.extract

    def swapped(self, rgb_HWC):
        return extract(self, rgb_HWC[..., ::-1])

    monkeypatch.setattr(PatchExtractor, "extract", swapped)
    with pytest.raises(HealthError, match="red and blue are swapped"):
        check_preprocessing(images, processor())


def test_other_settings_than_the_checkpoints_are_noticed():
    other = Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 32 * 32}
    )
    with pytest.raises(HealthError, match="grid"):
        check_preprocessing(ImageCache(other), processor())
    darker = Qwen2VLImageProcessorPil(
        patch_size=4,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 64, "longest_edge": 64 * 64},
        image_mean=[0.1, 0.1, 0.1],
    )
    with pytest.raises(HealthError, match="other values"):
        check_preprocessing(ImageCache(darker), processor())
