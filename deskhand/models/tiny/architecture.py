"""Architecture of the bundled policy: a `Qwen3VLForConditionalGeneration` with a few million parameters.

Used by `recipes.tiny`. The embeddings of number tokens (tied to the output head) and the tower's position table are
initialized with smooth Fourier features of their position, so that nearby positions are similar before training.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from deskhand.models.tiny.tokenizer import NUMBERS

PATCH_PX, MERGE = 16, 2
HIDDEN, LAYERS, HEADS, KEY_HEADS, HEAD_DIM = 192, 4, 6, 2, 32
TOWER_HIDDEN, TOWER_DEPTH, TOWER_HEADS, TOWER_GRID = 160, 4, 5, 32
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": PATCH_PX,
    "temporal_patch_size": 2,
    "merge_size": MERGE,
    "do_rescale": True,
    "do_normalize": True,
    "do_resize": True,
    "do_convert_rgb": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "rescale_factor": 1 / 255,
    "size": {"shortest_edge": 32 * 32, "longest_edge": 1280 * 1280},
    "resample": 3,
}


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLConfig:
    token: Any = tokenizer.convert_tokens_to_ids
    return Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": HIDDEN,
            "intermediate_size": 3 * HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KEY_HEADS,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": 8192,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [HEAD_DIM // 2 - 10, 5, 5],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
        },
        vision_config={
            "depth": TOWER_DEPTH,
            "hidden_size": TOWER_HIDDEN,
            "intermediate_size": 3 * TOWER_HIDDEN,
            "num_heads": TOWER_HEADS,
            "patch_size": PATCH_PX,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": HIDDEN,
            "num_position_embeddings": TOWER_GRID**2,
            "deepstack_visual_indexes": [1],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen3VLForConditionalGeneration:
    """Return a newly initialized policy in float32. The same seed gives the same weights."""
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(build_config(tokenizer)).float()
    with torch.no_grad():
        table: Any = model.get_input_embeddings().weight
        ids = torch.tensor(tokenizer.convert_tokens_to_ids(list(NUMBERS)))
        values = torch.arange(len(NUMBERS)) / 1000
        table[ids] = 0.5 * table[ids] + table.std() * fourier_features(values, HIDDEN, seed)
        grid = torch.arange(TOWER_GRID) / (TOWER_GRID - 1)
        rows, columns = torch.meshgrid(grid, grid, indexing="ij")
        half = TOWER_HIDDEN // 2
        features = torch.cat(
            [
                fourier_features(rows.flatten(), half, seed + 1),
                fourier_features(columns.flatten(), TOWER_HIDDEN - half, seed + 2),
            ],
            1,
        )
        position_table = model.model.visual.pos_embed.weight
        position_table.copy_(0.1 * features)
    return model


def fourier_features(values: torch.Tensor, width: int, seed: int, bandwidth: float = 12.0) -> torch.Tensor:
    """Return random Fourier features [N, width] of values in [0, 1], standardized (Rahimi and Recht, 2007)."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.randn(width, generator=generator) * bandwidth
    phases = torch.rand(width, generator=generator) * 2 * math.pi
    return math.sqrt(2.0) * torch.cos(values[:, None].float() * frequencies + phases)


def save(folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a Hugging Face folder with float16 weights."""
    import json

    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=1) + "\n")
    state = {
        name: value.detach().half().contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
