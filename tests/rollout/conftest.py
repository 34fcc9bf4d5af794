"""A tokenizer and an image processor for tests without weights."""

import pytest
import training_fixture

from deskhand.models.tiny.tokenizer import build_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer(training_fixture.CORPUS, merges=60)


@pytest.fixture(scope="session")
def image_processor():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 64 * 64}
    )
