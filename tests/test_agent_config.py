"""How a run's agent asks."""

import pytest
from PIL import Image

from deskhand.agents.from_config import model_image_size


@pytest.mark.parametrize("size", [(1920, 1080), (640, 480), (256, 192), (30, 40), (3000, 200)])
@pytest.mark.parametrize("bounds", [(56 * 56, 1280 * 28 * 28), (256 * 28 * 28, 16384 * 28 * 28)])
def test_the_size_that_is_seen_is_the_one_that_the_checkpoint_s_image_processor_makes(size, bounds):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, size={"shortest_edge": bounds[0], "longest_edge": bounds[1]}
    )
    _, high, wide = processor(images=[Image.new("RGB", size)], return_tensors="np")["image_grid_thw"][0]
    assert model_image_size(processor)(*size) == (wide * 14, high * 14)
