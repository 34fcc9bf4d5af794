"""The architectures of Qwen2.5-VL-3B and Qwen3-VL-4B at their full widths, as `models.architectures` has them; weights
are on the meta device, or random with few layers and a small vocabulary."""

from __future__ import annotations

from typing import Any

import torch

from deskhand.models.architectures import QWEN3_VL_4B, QWEN25_VL_3B, build

NAMES = {"qwen2.5-vl-3b": QWEN25_VL_3B, "qwen3-vl-4b": QWEN3_VL_4B}
SMALL_VOCABULARY = 64
IMAGE, START, END, VIDEO = 60, 61, 62, 63


def on_meta(name: str) -> Any:
    """All layers; no weight takes memory."""
    with torch.device("meta"):
        return build(NAMES[name])


def few_layers(name: str, seed: int = 0) -> Any:
    """Full widths with two blocks of vision, a vocabulary of 64 and one layer of text (two where the tower's blocks
    feed the first), with random weights in float32."""
    values = NAMES[name]
    layers = 2 if "deepstack_visual_indexes" in values["vision_config"] else 1
    text = {**values["text_config"], "vocab_size": SMALL_VOCABULARY, "num_hidden_layers": layers}
    vision = {**values["vision_config"], "depth": 2}
    if "fullatt_block_indexes" in vision:
        vision["fullatt_block_indexes"] = [1]
    else:
        vision["deepstack_visual_indexes"] = [0]
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
    torch.manual_seed(seed)
    return build({**values, "text_config": text, "vision_config": vision, **ids}).float()
