"""Checkpoint folders with random weights, for benchmarks that load a checkpoint without a download.

The tokenizer and the preprocessing are the bundled policy's. Used by `exactness`, `gpu_training` and `gpu_options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from deskhand.models import architectures
from deskhand.models.load import load_processors
from deskhand.models.tiny.architecture import save

MEDIUM: dict[str, Any] = {
    **architectures.QWEN3_VL_4B,
    "text_config": {
        **architectures.QWEN3_VL_4B["text_config"],
        "vocab_size": 2048,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        **architectures.QWEN3_VL_4B["vision_config"],
        "depth": 8,
        "hidden_size": 384,
        "intermediate_size": 1152,
        "num_heads": 6,
        "out_hidden_size": 512,
        "num_position_embeddings": 1024,
        "deepstack_visual_indexes": [3],
    },
}
"""Qwen3-VL's architecture with 44 million weights."""


def build(values: dict[str, Any], device: str, dtype: str, seed: int = 0) -> Any:
    """Return a model with random weights and the special ids of the bundled policy's tokenizer."""
    tokenizer: Any = load_processors("tiny")[0]
    token = tokenizer.convert_tokens_to_ids
    ids = {"image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>")}
    ids |= {"vision_start_token_id": token("<|vision_start|>"), "vision_end_token_id": token("<|vision_end|>")}
    text = {**values["text_config"], "bos_token_id": None, "eos_token_id": token("<|im_end|>")}
    before = torch.get_default_dtype()
    torch.manual_seed(seed)
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            return architectures.build({**values, **ids, "text_config": text})
    finally:
        torch.set_default_dtype(before)


def write(folder: Path, values: dict[str, Any], device: str, dtype: str) -> int:
    """Write a checkpoint folder with random float16 weights; return the number of weights.

    They are made on `device`, whose memory is free again afterwards.
    """
    model = build(values, device, dtype)
    count = sum(parameter.numel() for parameter in model.parameters())
    save(folder, model, load_processors("tiny")[0])
    del model
    if device != "cpu":
        torch.cuda.empty_cache()
    return count
