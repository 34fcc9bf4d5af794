"""The architectures of Qwen2.5-VL-3B and Qwen3-VL-4B at their full widths, as their public configurations state them; weights are
on the meta device, or random with few layers and a small vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

QWEN25_3B: dict[str, Any] = {
    "text_config": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": True,
    },
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "out_hidden_size": 2048,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
    },
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "tie_word_embeddings": True,
}
QWEN3_4B: dict[str, Any] = {
    "text_config": {
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [24, 20, 20],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
    },
    "vision_config": {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 2560,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [5, 11, 17],
    },
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "tie_word_embeddings": True,
}
NAMES = {"qwen2.5-vl-3b": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, QWEN25_3B)}
NAMES["qwen3-vl-4b"] = (Qwen3VLConfig, Qwen3VLForConditionalGeneration, QWEN3_4B)
SMALL_VOCABULARY = 64
IMAGE, START, END, VIDEO = 60, 61, 62, 63


def on_meta(name: str) -> Any:
    """All layers; no weight takes memory."""
    config, model, values = NAMES[name]
    with torch.device("meta"):
        return model(config(**values)).eval()


def few_layers(name: str, seed: int = 0) -> Any:
    """Full widths with two blocks of vision, a vocabulary of 64 and one layer of text (two where the tower's blocks feed the
    first), with random weights in float32."""
    config, model, values = NAMES[name]
    layers = 2 if "deepstack_visual_indexes" in values["vision_config"] else 1
    text = {**values["text_config"], "vocab_size": SMALL_VOCABULARY, "num_hidden_layers": layers}
    vision = {**values["vision_config"], "depth": 2}
    if "fullatt_block_indexes" in vision:
        vision["fullatt_block_indexes"] = [1]
    else:
        vision["deepstack_visual_indexes"] = [0]
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
    torch.manual_seed(seed)
    return model(config(**{**values, "text_config": text, "vision_config": vision, **ids})).float().eval()
