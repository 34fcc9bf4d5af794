"""The size in which Qwen models see an image."""

import pytest
from PIL import Image

from deskhand.actions.formats.smart_resize import model_image_size, smart_resize


@pytest.mark.parametrize(
    ("size", "seen"),
    [((1920, 1080), (1932, 1092)), ((1288, 728), (1288, 728)), ((1366, 768), (1372, 756)), ((20, 20), (56, 56)),
     ((7680, 4320), (4760, 2688))],
)  # fmt: skip
def test_images_are_seen_in_the_size_that_qwen_makes_of_them(size, seen):
    assert smart_resize(*size) == seen
    assert smart_resize(*seen) == seen


@pytest.mark.parametrize("size", [(1920, 1080), (640, 480), (256, 192), (30, 40), (3000, 200)])
@pytest.mark.parametrize("bounds", [(56 * 56, 1280 * 28 * 28), (256 * 28 * 28, 16384 * 28 * 28)])
def test_the_size_that_is_seen_is_the_one_that_the_checkpoint_s_image_processor_makes(size, bounds):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, size={"shortest_edge": bounds[0], "longest_edge": bounds[1]}
    )
    _, high, wide = processor(images=[Image.new("RGB", size)], return_tensors="np")["image_grid_thw"][0]
    assert model_image_size(processor)(*size) == (wide * 14, high * 14)
