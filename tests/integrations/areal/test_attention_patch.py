"""Rows that are packed into one sequence do not see each other; a model with LoRA says where images are."""

from __future__ import annotations

import peft
import pytest
import random_models
import torch
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from deskhand.errors import ConfigError
from deskhand.integrations.areal.patches.model import (
    NAME,
    patch_attention,
    patch_lora_positions,
    patch_rope_positions,
)


def test_packed_rows_give_what_each_gives_alone_and_transformers_own_do_not():
    torch.set_num_threads(1)
    own = ALL_ATTENTION_FUNCTIONS[NAME]
    model = random_models.build("qwen3_vl").model.language_model
    rows = [torch.randint(0, 140, (1, length)) for length in (7, 11, 5)]
    bounds = torch.tensor([0, 7, 18, 23], dtype=torch.int32)
    packed = torch.cat(rows, 1)
    positions = torch.cat([torch.arange(row.shape[1]) for row in rows]).expand(3, 1, -1)
    alone = torch.cat([model(input_ids=row).last_hidden_state for row in rows], 1)

    def together():
        lengths = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "use_cache": False}
        return model(input_ids=packed, attention_mask=None, position_ids=positions, **lengths).last_hidden_state

    try:
        with torch.no_grad():
            leaking = (together() - alone).abs().max()
            patch_attention()
            patch_attention()
            kept = (together() - alone).abs().max()
            untouched = (torch.cat([model(input_ids=row).last_hidden_state for row in rows], 1) - alone).abs().max()
    finally:
        ALL_ATTENTION_FUNCTIONS.register(NAME, own)
    assert kept < 1e-5
    assert untouched == 0
    assert leaking > 1e-3


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
