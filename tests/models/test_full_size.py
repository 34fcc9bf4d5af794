"""Qwen2.5-VL-3B and Qwen3-VL-4B on a CPU: which parameters each mode trains, and that gradients reach only these."""

from __future__ import annotations

import hashlib
import re

import full_size
import numpy as np
import pytest
import torch
from PIL import Image

from deskhand.config.load import load_config
from deskhand.config.trainer import LoraConfig, PolicyConfig
from deskhand.models.architectures import QWEN35_4B, build
from deskhand.models.forward import positions
from deskhand.recorder.graph import Sequence
from deskhand.trainer.policy import Policy
from deskhand.types import ImageSpan, PreparedImage
from deskhand.venvs import shipped_path

torch.set_num_threads(1)
BILLIONS = {"qwen2.5-vl-3b": 3.75, "qwen3-vl-4b": 4.44}
TEXT = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOWER = {
    "qwen2.5-vl-3b": ("attn.qkv", "attn.proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "qwen3-vl-4b": ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2"),
}
LAYERS = {"qwen2.5-vl-3b": (36, 32), "qwen3-vl-4b": (36, 24)}


def places(names) -> set[str]:
    """Trained parts without the numbers of layers: `language_model.layers.N.self_attn.q_proj` and the like."""
    return {re.sub(r"\.\d+\.", ".N.", name.split(".lora_")[0].removeprefix("model.")) for name in names}


def adapted(name: str, *, vision: bool) -> set[str]:
    text = {f"language_model.layers.N.{'self_attn' if part[0] in 'qkvo' else 'mlp'}.{part}" for part in TEXT}
    return text | ({f"visual.blocks.N.{part}" for part in TOWER[name]} if vision else set())


@pytest.mark.parametrize("name", full_size.NAMES)
def test_the_whole_architecture_has_the_size_that_its_name_says(name):
    model = full_size.on_meta(name)
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e9 == pytest.approx(BILLIONS[name], abs=0.01)


@pytest.mark.parametrize("vision", [False, True])
@pytest.mark.parametrize("name", full_size.NAMES)
def test_adapters_are_where_the_settings_say_in_every_layer_and_nowhere_else(name, vision):
    policy = Policy(full_size.on_meta(name), PolicyConfig(lora=LoraConfig(rank=8, vision=vision)))
    trained = {key for key, parameter in policy.model.named_parameters() if parameter.requires_grad}
    assert all(".lora_A." in key or ".lora_B." in key for key in trained)
    assert places(trained) == adapted(name, vision=vision)
    layers, blocks = LAYERS[name]
    assert len(trained) == 2 * (layers * len(TEXT) + (blocks * len(TOWER[name]) if vision else 0))
    share = sum(policy.model.get_parameter(key).numel() for key in trained) / (BILLIONS[name] * 1e9)
    assert 0.001 < share < 0.02


def test_the_shipped_adapters_of_qwen3_5_are_in_linear_and_other_layers() -> None:
    with torch.device("meta"):
        model = build(QWEN35_4B)
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e9 == pytest.approx(4.54, abs=0.01)
    lora = load_config(shipped_path("configs") / "qwen35_4b_lora_40gb.yaml").policy.lora
    assert lora is not None
    trained = Policy(model, PolicyConfig(lora=lora)).parameters()
    linear = {f"linear_attn.{part}" for part in ("in_proj_qkv", "in_proj_z", "out_proj")}
    text = adapted("qwen3-vl-4b", vision=False) | {f"language_model.layers.N.{part}" for part in linear}
    assert places(trained) == text
    assert len(trained) == 2 * (32 * 3 + 8 * 4 + 24 * 3)


@pytest.mark.parametrize("name", full_size.NAMES)
def test_full_training_trains_everything_and_a_frozen_tower_nothing_of_it(name):
    whole = Policy(full_size.on_meta(name))
    assert set(whole.parameters()) == {key for key, _ in whole.model.named_parameters()}
    frozen = Policy(full_size.on_meta(name), PolicyConfig(train_vision=False))
    assert {key for key in whole.parameters() if ".visual." not in key} == set(frozen.parameters())


def row(model) -> tuple[Sequence, dict[str, PreparedImage]]:
    """One screenshot of 8x8 patches, some words, three sampled tokens."""
    config = model.config.vision_config
    width = config.in_channels * config.temporal_patch_size * config.patch_size**2
    pixels = np.random.default_rng(0).standard_normal((64, width)).astype(np.float32)
    image = PreparedImage(hashlib.sha256(pixels.tobytes()).hexdigest(), pixels, (1, 8, 8), 16, 0, 0)
    ids = (1, full_size.START, *(full_size.IMAGE,) * 16, full_size.END, 5, 6, 7, 8, 9)
    sampled = (False,) * (len(ids) - 3) + (True,) * 3
    zeros = (0.0,) * len(ids)
    spans = (ImageSpan(2, 16, image.sha256),)
    return Sequence(ids, sampled, zeros, (-1,) * (len(ids) - 3) + (0,) * 3, spans, ("a",)), {image.sha256: image}


MODES = {
    "full": PolicyConfig(),
    "frozen tower": PolicyConfig(train_vision=False),
    "adapters": PolicyConfig(lora=LoraConfig(rank=4)),
    "adapters, tower too": PolicyConfig(lora=LoraConfig(rank=4, vision=True), gradient_checkpointing=True),
}


@pytest.mark.parametrize("name", full_size.NAMES)
def test_gradients_reach_what_is_trained_and_nothing_else(name):
    model = full_size.few_layers(name)
    sequence, images = row(model)
    state = dict(model.state_dict())
    for mode, settings in MODES.items():
        policy = Policy(full_size.few_layers(name) if "adapter" in mode else model, settings)
        if "adapter" in mode:
            for key, parameter in policy.model.named_parameters():
                if ".lora_B." in key:  # as after a first update: at 0 it lets no gradient through to A
                    torch.nn.init.normal_(parameter, std=1e-3)
        policy.model.zero_grad(set_to_none=True)
        policy.accumulate(policy.plan([sequence], images), lambda batch, scores: scores.logprobs_W.sum())
        reached = {
            key for key, value in policy.model.named_parameters() if value.grad is not None and bool(value.grad.any())
        }
        expected = {key for key, value in policy.model.named_parameters() if value.requires_grad}
        assert reached == expected, f"{mode}: {sorted(reached ^ expected)}"
        if mode == "full":
            assert {"model.language_model.embed_tokens.weight", "model.visual.patch_embed.proj.weight"} <= reached
        if mode == "adapters":
            published = policy.snapshot()
            assert published.keys() == state.keys()
            assert {key: value.shape for key, value in published.items()} == {
                key: value.shape for key, value in state.items()
            }
        if "frozen" in mode:
            model.requires_grad_(True)


@pytest.mark.parametrize("name", full_size.NAMES)
def test_a_screenshot_of_1280x720_goes_through_the_processor_to_its_placeholders_and_positions(name):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    config = full_size.on_meta(name).config.vision_config
    processor = Qwen2VLImageProcessorPil(
        patch_size=config.patch_size,
        merge_size=config.spatial_merge_size,
        temporal_patch_size=config.temporal_patch_size,
    )
    prepared = processor(Image.new("RGB", (1280, 720)), return_tensors="np")
    grid = tuple(int(side) for side in prepared["image_grid_thw"][0])
    tokens = grid[0] * grid[1] * grid[2] // 4
    assert tokens == {"qwen2.5-vl-3b": 1196, "qwen3-vl-4b": 880}[name]
    patch = config.in_channels * config.temporal_patch_size * config.patch_size**2
    assert prepared["pixel_values"].shape == (grid[0] * grid[1] * grid[2], patch)
    image = PreparedImage("x", prepared["pixel_values"], grid, tokens, 1280, 720)
    found, following = positions(tokens + 4, [ImageSpan(2, tokens, "x")], {"x": image}, 2)
    assert found.shape == (3, tokens + 4)
    assert following == 4 + max(grid[1], grid[2]) // 2
