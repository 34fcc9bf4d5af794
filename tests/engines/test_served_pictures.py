"""Servers receive the recorded pixels: preprocessing them again gives the tensor that is trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recording import picture, png
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.errors import RecordError
from deskhand.recorder.image_decoding import read_data_uri
from deskhand.recorder.images import ImageCache
from deskhand.types import PreparedImage


def processor(patch: int, mean: list[float], deviation: list[float], longest: int) -> Any:
    return Qwen2VLImageProcessorPil(
        patch_size=patch,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=mean,
        image_std=deviation,
        size={"shortest_edge": 4 * patch * patch, "longest_edge": longest},
    )


FAMILIES = {
    "qwen3_vl": processor(16, [0.5] * 3, [0.5] * 3, 300 * 300),
    "qwen2_5_vl": processor(14, [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711], 300 * 300),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(64, 64), (256, 192), (640, 361), (33, 500)])
def test_the_sent_image_gives_the_recorded_tensor(family: str, size: tuple[int, int]) -> None:
    recorded = ImageCache(FAMILIES[family]).add(png(picture(1, *size)))
    sent = read_data_uri(ImageEncoder(FAMILIES[family]).data_uri(recorded))
    seen = ImageCache(FAMILIES[family]).add(sent)
    assert seen.grid_thw == recorded.grid_thw
    assert (seen.width, seen.height) == tuple(FAMILIES[family].patch_size * n for n in reversed(recorded.grid_thw[1:]))
    np.testing.assert_array_equal(seen.pixel_values, recorded.pixel_values)


def test_an_image_is_encoded_once_and_the_cache_is_bounded() -> None:
    cache = ImageCache(FAMILIES["qwen3_vl"])
    images = [cache.add(png(seed, 128, 128)) for seed in range(4)]
    pictures = ImageEncoder(FAMILIES["qwen3_vl"])
    first = pictures.data_uri(images[0])
    assert pictures.data_uri(images[0]) is first
    small = ImageEncoder(FAMILIES["qwen3_vl"], cache_bytes=3 * len(first))
    made = [small.data_uri(image) for image in images]
    assert small.data_uri(images[3]) is made[3]
    assert small.data_uri(images[0]) is not made[0]
    assert small.data_uri(images[0]) == made[0]


def test_values_that_are_not_an_image_are_rejected() -> None:
    image = ImageCache(FAMILIES["qwen3_vl"]).add(png(1, 64, 64))
    pictures = ImageEncoder(FAMILIES["qwen3_vl"])

    def changed(values: np.ndarray, grid: tuple[int, int, int] | None = None) -> PreparedImage:
        return PreparedImage(image.sha256, values, grid or image.grid_thw, image.tokens, image.width, image.height)

    noise = np.random.default_rng(1).normal(size=image.pixel_values.shape).astype(np.float32)
    with pytest.raises(RecordError, match=r"^pixels: .* 8-bit"):
        pictures.data_uri(
            changed(np.repeat(noise[:, :768].reshape(-1, 3, 1, 16, 16), 2, axis=2).reshape(image.pixel_values.shape))
        )
    moving = np.array(image.pixel_values)
    moving[0, 256:512] = -moving[0, :256]
    with pytest.raises(RecordError, match=r"^pixels: .* still"):
        pictures.data_uri(changed(moving))
