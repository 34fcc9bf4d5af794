"""Rows that are packed into one sequence do not see each other."""

from __future__ import annotations

import pytest
import random_models
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from deskhand.models import packed_attention
from deskhand.models.packed_attention import NAME, attend_varlen, has_varlen_kernel, separate_packed_rows, varlen_bounds


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


LENGTHS = (7, 0, 11, 11, 5)
BOUNDS = (0, 7, 7, 18, 29, 34)


def by_torch(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
):
    """What torch documents of `varlen_attn`, one row after another: [tokens, heads, head] in and out."""
    assert (cu_seq_q.dtype, cu_seq_k.dtype) == (torch.int32, torch.int32)
    lengths_q, lengths_k = cu_seq_q.diff().tolist(), cu_seq_k.diff().tolist()
    assert (max_q, max_k) == (max(lengths_q), max(lengths_k))
    assert min(lengths_q) > 0
    rows = zip(query.split(lengths_q), key.split(lengths_k), value.split(lengths_k), strict=True)
    return torch.cat([
        scaled_dot_product_attention(
            *(part.transpose(0, 1)[None] for part in row), is_causal=window_size == (-1, 0), scale=scale,
            enable_gqa=enable_gqa,
        )[0].transpose(0, 1)
        for row in rows
    ])  # fmt: skip


def output_and_gradients(attend, dtype=torch.float32, device="cpu"):
    """Of random queries with 4 heads, and keys and values with 2, of 16 numbers."""
    chance = torch.Generator().manual_seed(0)

    def random(heads):
        return torch.randn(1, heads, sum(LENGTHS), 16, generator=chance).to(device, dtype).requires_grad_()

    parts = [random(4), random(2), random(2)]
    output = attend(*parts)
    weights = torch.randn(output.shape, generator=chance).to(device, dtype)
    (output * weights).sum().backward()
    return [output.detach(), *(part.grad for part in parts)]


def in_blocks(query, key, value):
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 2, True
    separate_packed_rows()
    packed = ALL_ATTENTION_FUNCTIONS[NAME]
    return packed(module, query, key, value, None, cu_seq_lens_q=BOUNDS, scaling=0.3)[0]


def test_torchs_kernel_gets_the_rows_that_are_otherwise_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", by_torch)
    packed_attention.torch_varlen.cache_clear()
    try:
        found = output_and_gradients(lambda *parts: attend_varlen(*parts, BOUNDS, 0.3))
    finally:
        packed_attention.torch_varlen.cache_clear()
    torch.testing.assert_close(found, output_and_gradients(in_blocks), rtol=1e-5, atol=1e-6)
    bounds_R, longest = varlen_bounds(BOUNDS, torch.device("cpu"))
    assert (bounds_R.tolist(), longest) == ([0, 7, 18, 29, 34], 11)


@pytest.mark.skipif(packed_attention.torch_varlen() is None, reason="the installed torch has no varlen_attn with GQA")
def test_the_installed_torch_takes_these_arguments() -> None:
    """On the meta device, where torch checks arguments and computes shapes."""
    parts = [torch.empty(1, heads, 34, 16, dtype=torch.bfloat16, device="meta").requires_grad_() for heads in (4, 2, 2)]
    output = attend_varlen(*parts, BOUNDS, 0.3)
    output.sum().backward()
    assert output.shape == (1, 34, 4, 16)
    assert parts[1].grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_processor_computes_blocks(dtype: torch.dtype) -> None:
    assert not has_varlen_kernel(torch.empty(1, 4, 34, 16, dtype=dtype))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_torchs_kernel_gives_the_gradients_of_the_blocks() -> None:
    query = torch.empty(1, 4, 34, 16, dtype=torch.bfloat16, device="cuda")
    if not has_varlen_kernel(query):
        pytest.skip("the installed torch has no varlen_attn with GQA, or the GPU no kernel")
    expected = output_and_gradients(in_blocks, torch.float32, "cuda")
    found = output_and_gradients(in_blocks, torch.bfloat16, "cuda")
    torch.testing.assert_close([part.float() for part in found], expected, rtol=2e-2, atol=3e-2)
