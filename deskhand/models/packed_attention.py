"""Attention within each row of a packed batch, for transformers' "sdpa".

Used by `models.forward`, `models.linear_attention` and AReaL's workers; start with `separate_packed_rows`. Rows are
packed one after another without padding; their bounds are passed as `cu_seq_lens_q`, the form that FlashAttention
takes. transformers' "sdpa" ignores the bounds, so every row would silently attend to those before it. On GPUs in half
precision torch's variable-length attention takes all rows at once, where the installed torch has it; elsewhere adjacent
rows of equal length are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from inspect import signature
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor

NAME = "sdpa"


def separate_packed_rows() -> None:
    """Let "sdpa" respect bounds in this process; without bounds it is transformers' own. A second call does nothing."""
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    own = ALL_ATTENTION_FUNCTIONS[NAME]
    if getattr(own, "reads_bounds", False):
        return

    def packed(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        """query: [1, heads, tokens, head]; returns [1, tokens, heads, head]."""
        bounds = named.get("cu_seq_lens_q")
        if (
            bounds is None
            or query.shape[0] != 1
            or int(bounds[-1]) != query.shape[2]
            or named.get("is_causal") is False
        ):
            mask = attention_mask if isinstance(attention_mask, Tensor) else None
            return own(module, query, key, value, mask, **named)
        if has_varlen_kernel(query) and not named.get("dropout"):
            return attend_varlen(query, key, value, [int(edge) for edge in bounds], named.get("scaling")), None
        named = {name: what for name, what in named.items() if name not in ("position_ids", "is_causal")}
        outputs = []
        for start, count, length in runs_of_rows([int(edge) for edge in bounds]):
            parts = (_rows(tensor, start, count, length) for tensor in (query, key, value))
            output_RTND, _ = own(module, *parts, None, is_causal=True, **named)
            outputs.append(output_RTND.flatten(0, 1))
        return torch.cat(outputs).unsqueeze(0), None

    packed.reads_bounds = True  # type: ignore[attr-defined]
    AttentionInterface.register(NAME, packed)


@cache
def torch_varlen() -> Callable[..., Any] | None:
    """Return torch's variable-length attention; None if the installed torch has none with grouped queries."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if {"scale", "window_size", "enable_gqa"} <= signature(varlen_attn).parameters.keys() else None


def has_varlen_kernel(query: Tensor) -> bool:
    """Return whether `attend_varlen` has a kernel (FlashAttention-2) for a query: its device, precision and head."""
    half, size = query.dtype in (torch.bfloat16, torch.float16), query.shape[-1]
    if not (query.is_cuda and half and size % 8 == 0 and size <= 256) or torch_varlen() is None:
        return False
    return torch.cuda.get_device_capability(query.device) >= (8, 0)


def attend_varlen(query: Tensor, key: Tensor, value: Tensor, bounds: Sequence[int], scale: float | None) -> Tensor:
    """Return causal attention within the rows. query: [1, heads, tokens, head]; returns [1, tokens, heads, head]."""
    attention = torch_varlen()
    assert attention is not None
    bounds_R, longest = varlen_bounds(tuple(bounds), query.device)
    parts = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    named = {"scale": scale, "window_size": (-1, 0), "enable_gqa": True}
    return attention(*parts, bounds_R, bounds_R, longest, longest, **named).unsqueeze(0)


@lru_cache(maxsize=1)  # all layers of a pass have the same
def varlen_bounds(bounds: tuple[int, ...], device: torch.device) -> tuple[Tensor, int]:
    """Return the bounds int32[rows + 1] on the device, without empty rows, and the length of the longest row."""
    edges = list(dict.fromkeys(bounds))
    longest = max(end - start for start, end in pairwise(edges))
    return torch.tensor(edges, dtype=torch.int32, device=device), longest


def runs_of_rows(bounds: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, number of rows, length) of adjacent rows of equal length, which are computed together."""
    rows = ((start, end - start) for start, end in pairwise(bounds) if end > start)
    for length, run in groupby(rows, key=lambda row: row[1]):
        starts = [start for start, _ in run]
        yield starts[0], len(starts), length


def _rows(packed_1NTD: Tensor, start: int, count: int, length: int) -> Tensor:
    """Return `count` rows of a packed tensor, [rows, heads, length, head]."""
    return packed_1NTD[0, :, start : start + count * length].unflatten(1, (count, length)).transpose(0, 1)
