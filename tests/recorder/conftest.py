"""A small ChatML checkpoint: tokenizer and image processor, no weights."""

from __future__ import annotations

from typing import Any

import pytest
from recording import ScriptedEngine
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer

WORDS = [
    "Click the button named Save.",
    "open the file notes.txt",
    "You are a helpful assistant.",
    "tool_response",
    "think look",
]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(WORDS, merges=60)


@pytest.fixture(scope="session")
def image_processor() -> Any:
    return Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 64 * 64}
    )


@pytest.fixture(scope="session")
def renderer(tokenizer: PreTrainedTokenizerFast) -> ChatRenderer:
    return ChatRenderer(tokenizer)


@pytest.fixture
def images(image_processor: Any) -> ImageCache:
    return ImageCache(image_processor)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def recorder(renderer: ChatRenderer, engine: ScriptedEngine, images: ImageCache) -> Recorder:
    return Recorder(renderer, engine, images)
