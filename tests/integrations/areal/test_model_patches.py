"""A model with LoRA says where images are; images are placed right."""

from __future__ import annotations

import peft
import pytest
import random_models
import torch
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration

from deskhand.errors import ConfigError
from deskhand.integrations.areal.patches.model import patch_lora_positions, patch_rope_positions


def test_this_transformers_places_images_right_and_is_not_patched():
    assert patch_rope_positions() is False


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_a_model_with_lora_says_where_images_are(family, monkeypatch):
    """As AReaL asks it: `engine.model.model`."""
    model = random_models.build(family)
    image = model.config.image_token_id
    ids = torch.tensor([[5, image, image, image, image, 6, 7]])
    asked = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "video_grid_thw": None,
        "mm_token_type_ids": (ids == image).long(),
        "inputs_embeds": None,
        "past_key_values": None,
    }
    expected = model.model.compute_3d_position_ids(**asked)
    assert not torch.equal(expected[0], expected[2]), "no image was placed"
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    for whole in (Qwen3VLForConditionalGeneration, Qwen2_5_VLForConditionalGeneration):
        monkeypatch.setattr(whole, "compute_3d_position_ids", None, raising=False)
        monkeypatch.delattr(whole, "compute_3d_position_ids")
    with pytest.raises(AttributeError):
        wrapped.model.compute_3d_position_ids(**asked)
    patch_lora_positions()
    patch_lora_positions()
    assert torch.equal(wrapped.model.compute_3d_position_ids(**asked), expected)


def test_a_transformers_that_computes_positions_elsewhere_is_refused(monkeypatch):
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    monkeypatch.delattr(Qwen3VLModel, "compute_3d_position_ids")
    with pytest.raises(ConfigError, match="Qwen3VLModel has no compute_3d_position_ids"):
        patch_lora_positions()
