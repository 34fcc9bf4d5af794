"""Attention of packed rows without a GPU. Invariant: rows that are packed into one sequence do not see each other: packed is alone.

AReaL packs rows, hands their bounds on as `cu_seq_lens_q`, and relies on FlashAttention to keep them apart. transformers' "sdpa"
knows nothing of these bounds, so with `attn_impl: sdpa` and more than one row in a micro-batch every row attends to those before
it, silently. `install` puts a function under the same name, by transformers' public registry, that reads the bounds; without bounds
it is transformers' own. `deskhand.integrations.areal.worker` does so in AReaL's workers.
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
