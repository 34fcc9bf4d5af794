"""Attention of packed rows without a GPU.

AReaL packs rows, passes their bounds as `cu_seq_lens_q` and relies on FlashAttention to separate them. transformers'
"sdpa" ignores the bounds, so every row silently attends to those before it. `install` registers a function that
respects them; without bounds it is transformers' own. Installed by `integrations.areal.worker`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

NAME = "sdpa"


def install() -> None:
    """Register the function in this process; a second call does nothing."""
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
        named = {name: what for name, what in named.items() if name not in ("position_ids", "is_causal")}
        edges = [int(edge) for edge in bounds]
        parts = [
            own(module, query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], None, is_causal=True, **named)[0]
            for a, b in pairwise(edges)
            if b > a
        ]
        return torch.cat(parts, dim=1), None

    packed.reads_bounds = True  # type: ignore[attr-defined]
    AttentionInterface.register(NAME, packed)
