"""Rows that are packed into one sequence do not see each other."""

from __future__ import annotations

import random_models
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from deskhand.integrations.areal.patches.model import NAME, patch_attention, patch_rope_positions


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
