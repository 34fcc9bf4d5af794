"""Rows that are packed into one sequence do not see each other."""

from __future__ import annotations

import pytest
import random_models
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from deskhand.models.packed_attention import NAME, separate_packed_rows


@pytest.mark.parametrize("lengths", [(7, 11, 5), (6, 6, 6), (4, 4, 9, 1, 4), (12,)])
def test_packed_rows_give_what_each_gives_alone_and_transformers_own_do_not(lengths: tuple[int, ...]) -> None:
    torch.set_num_threads(1)
    before = ALL_ATTENTION_FUNCTIONS[NAME]
    model = random_models.build("qwen3_vl").model.language_model
    rows = [torch.randint(0, 140, (1, length)) for length in lengths]
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    packed = torch.cat(rows, 1)
    positions = torch.cat([torch.arange(row.shape[1]) for row in rows]).expand(3, 1, -1)

    def together() -> torch.Tensor:
        lengths = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "use_cache": False}
        return model(input_ids=packed, attention_mask=None, position_ids=positions, **lengths).last_hidden_state

    def separately() -> torch.Tensor:
        return torch.cat([model(input_ids=row).last_hidden_state for row in rows], 1)

    try:
        with torch.no_grad():
            ALL_ATTENTION_FUNCTIONS.register(NAME, sdpa_attention_forward)
            alone = separately()
            leaking = (together() - alone).abs().max()
            separate_packed_rows()
            separate_packed_rows()
            kept = (together() - alone).abs().max()
            untouched = (separately() - alone).abs().max()
    finally:
        ALL_ATTENTION_FUNCTIONS.register(NAME, before)
    assert kept < 1e-5
    assert untouched == 0
    assert leaking > 1e-3 or len(lengths) == 1
