"""Tiny random-weights checkpoints of all families and conversations with images of different sizes."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from deskhand.models import architectures, forward
from deskhand.models.families import FAMILIES
from deskhand.models.linear_attention import separate_rows
from deskhand.models.load import LoadedModel, load_processors
from deskhand.models.tiny.architecture import save
from deskhand.types import ImageSpan, PreparedImage, Prompt

VOCABULARY = 160
IMAGE, START, END, STOP = 150, 151, 152, 153
PATCH, MERGE = 4, 2
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rope_parameters": ROPE,
    "tie_word_embeddings": True,
}
LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "rope_parameters": {**ROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
}
"""Qwen3.5: three layers with linear attention and one with keys and values."""
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}
"""Qwen3-VL mixture of experts."""
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": PATCH,
    "in_channels": 3,
}
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": PATCH,
    "merge_size": MERGE,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 64, "longest_edge": 64 * 64},
}
IDS = {"image_token_id": IMAGE, "video_token_id": 154, "vision_start_token_id": START, "vision_end_token_id": END}


def build(family: str, seed: int = 0, vocabulary: int = VOCABULARY, ids: dict[str, int] | None = None) -> Any:
    """A model whose weights are large enough that its distributions are far from flat."""
    torch.manual_seed(seed)
    text, ids = {**TEXT, "vocab_size": vocabulary}, ids or IDS
    if family == "qwen3_vl":
        vision = {**VISION, "out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
        model = Qwen3VLForConditionalGeneration(
            Qwen3VLConfig(text_config={**text, "head_dim": 16}, vision_config=vision, tie_word_embeddings=True, **ids)
        )
    elif family == "qwen3_vl_moe":
        vision = {**VISION, "out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
        text |= {"head_dim": 16, **EXPERTS}
        model = Qwen3VLMoeForConditionalGeneration(
            Qwen3VLMoeConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
        )
    elif family == "qwen3_5":
        vision = {**VISION, "out_hidden_size": 64, "num_position_embeddings": 64}
        model = Qwen3_5ForConditionalGeneration(
            Qwen3_5Config(
                text_config={**text, **LINEAR},
                vision_config=vision,
                tie_word_embeddings=True,
                **ids,
            )
        )
    elif family == "qwen3_5_moe":
        vision = {**VISION, "out_hidden_size": 64, "num_position_embeddings": 64}
        text |= {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 32}
        model = Qwen3_5MoeForConditionalGeneration(
            Qwen3_5MoeConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
        )
    else:
        vision = {
            **VISION,
            "out_hidden_size": 64,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        }
        model = Qwen2_5_VLForConditionalGeneration(
            Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.12 if "embed_tokens" not in name else 0.3)
            elif name.endswith("A_log"):  # states that last for some tokens to some hundred
                parameter.copy_(torch.linspace(-5, 0, parameter.numel()))
    separate_rows(model)
    return model.eval()


def wrap(family: str, seed: int = 0) -> LoadedModel:
    """The engine needs neither a tokenizer nor an image processor."""
    return LoadedModel(build(family, seed), None, None, family, "random")  # type: ignore[arg-type]


def image(seed: int, height: int, width: int) -> PreparedImage:
    """Random pixels; `height` and `width` in image tokens."""
    rows, columns = height * MERGE, width * MERGE
    pixels = np.random.default_rng(seed).normal(size=(rows * columns, 3 * 2 * PATCH * PATCH)).astype(np.float32)
    name = hashlib.sha256(pixels.tobytes()).hexdigest()
    return PreparedImage(name, pixels, (1, rows, columns), height * width, columns * PATCH, rows * PATCH)


@dataclass
class Conversation:
    """Grows turn by turn: an image of some size and some text, then what the model sampled."""

    seed: int
    token_ids: tuple[int, ...] = ()
    spans: tuple[ImageSpan, ...] = ()
    images: dict[str, PreparedImage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def observe(self) -> Prompt:
        shown = image(self.random.randrange(10**6), self.random.randint(2, 6), self.random.randint(2, 6))
        self.images[shown.sha256] = shown
        start = len(self.token_ids) + 1
        self.spans += (ImageSpan(start, shown.tokens, shown.sha256),)
        text = tuple(self.random.randrange(140) for _ in range(self.random.randint(3, 12)))
        self.token_ids += (START, *(IMAGE,) * shown.tokens, END, *text)
        return Prompt(self.token_ids, self.spans, dict(self.images))


def save_checkpoint(folder: Path, family: str, seed: int = 0) -> Any:
    """An ordinary Hugging Face folder with a word-level tokenizer; the model that was saved."""
    words = [f"w{index}" for index in range(VOCABULARY)]
    for index, name in (
        (IMAGE, "<|image_pad|>"),
        (START, "<|vision_start|>"),
        (END, "<|vision_end|>"),
        (STOP, "<|im_end|>"),
    ):
        words[index] = name
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    model = build(family, seed)
    model.save_pretrained(folder)
    return model


def save_with_bundled_tokenizer(folder: Path, family: str, seed: int = 0) -> Path:
    """A random model with the bundled policy's tokenizer, chat template and image processor."""
    tokenizer, _ = load_processors("tiny")
    names = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    ids = {f"{key}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for key, name in names.items()}
    text = {"vocab_size": len(tokenizer), "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    rope = {**ROPE, "mrope_section": [4, 2, 2], "partial_rotary_factor": 0.25, "mrope_interleaved": True}
    vision: dict[str, Any] = {"hidden_size": 64, "patch_size": 16, "out_hidden_size": 128}
    if family.startswith("qwen3_5"):
        text |= {**LINEAR, "linear_num_value_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
    if family == "qwen3_5_moe":
        text |= {**EXPERTS, "shared_expert_intermediate_size": 64}
    elif family.startswith("qwen3_vl"):
        text |= EXPERTS if family == "qwen3_vl_moe" else {}
        rope |= {"mrope_section": [16, 8, 8], "partial_rotary_factor": 1.0}
        vision |= {"deepstack_visual_indexes": [0, 1]}
    elif family == "qwen2_5_vl":
        rope |= {"mrope_section": [16, 8, 8], "partial_rotary_factor": 1.0, "mrope_interleaved": False}
        vision |= {"window_size": 64, "fullatt_block_indexes": [1], "tokens_per_second": 2}
    values = {
        "model_type": family,
        "text_config": {**TEXT, **text, "head_dim": 64, "rope_parameters": rope},
        "vision_config": {**VISION, "num_position_embeddings": 256, **vision},
        "tie_word_embeddings": True,
        **ids,
    }
    torch.manual_seed(seed)
    model = architectures.build(values)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.copy_(torch.linspace(-5, 0, parameter.numel()))
            elif parameter.ndim > 1:
                parameter.mul_(4)
    save(folder, model, tokenizer)
    file = folder / "model.safetensors"
    save_file(FAMILIES[family].stored(load_file(file)), file, metadata={"format": "pt"})
    return folder


def hidden_states(model: Any, rows: Sequence[Prompt], images: dict[str, PreparedImage]) -> list[torch.Tensor]:
    """Final hidden states [T, H] of packed rows with their images."""
    inputs, features = forward.collate(rows, images, model), ()
    if inputs.image_hashes:
        stacked = forward.stack_images([images[name] for name in inputs.image_hashes], "cpu")
        features = tuple(
            layer.index_select(0, inputs.feature_index_N) for layer in forward.encode_images(model, *stacked)
        )
    ids_1T, positions_31T, index_N = inputs.input_ids_1T, inputs.position_ids_31T, inputs.placeholder_index_N
    hidden_1TH = forward.forward_decoder(model, ids_1T, positions_31T, features, index_N, lengths=inputs.lengths)
    return list(hidden_1TH[0].split(inputs.lengths))
