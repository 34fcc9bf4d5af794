"""Tiny random checkpoints of both families that, like trained ones, never say the ids that stand for pictures."""

from __future__ import annotations

import json
from pathlib import Path

import random_models
import torch

from deskhand.models.tiny.tokenizer import build_tokenizer

CORPUS = ["Click the blue square", "Click the red square", '{"op":"click","x":512,"y":300}', '{"op":"done"}', "error: "]
SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|im_start|>")


def save_checkpoint(folder: Path, family: str, seed: int = 0) -> Path:
    """An ordinary Hugging Face folder. Output weights are not tied: the first dimension is constant on the way, and the
    ids that stand for pictures weigh it far down, so their share of a distribution is below 1e-12."""
    tokenizer = build_tokenizer(CORPUS, merges=60)
    ids = {
        "image_token_id": tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    }
    model = random_models.build(family, seed, vocabulary=len(tokenizer), ids=ids)
    table = model.get_input_embeddings().weight
    model.lm_head.weight = torch.nn.Parameter(table.detach().clone())
    model.config.tie_word_embeddings = model.config.text_config.tie_word_embeddings = False
    model.config.text_config.eos_token_id = tokenizer.eos_token_id
    model.config.text_config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        table[:, 0] = 8.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(list(SPECIAL)), 0] = -20.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(random_models.PREPROCESSOR))
    return folder


def save_text_checkpoint(folder: Path, seed: int = 0) -> Path:
    """A tiny random Qwen3 without vision, with the same tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = build_tokenizer(CORPUS, merges=60)
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "head_dim": 16,
        "max_position_embeddings": 16384,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads, **ends))
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 8.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(list(SPECIAL)), 0] = -20.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
