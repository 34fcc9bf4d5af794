"""KV cache of the requests in flight. Used by `hf.decode_batch`.

One tensor [2 * layers, slots, key heads, capacity, head size] has the keys of layer l at 2l and its values at 2l + 1.
The used slots come first, so a decoding step attends to plain views without gathering. Values past a slot's length are
finite and masked.

Invariant: slot b has `lengths[b]` valid positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CAPACITY_STEP = 128


class KVCache:
    """Storage that grows on demand to at most `max_slots` x `max_tokens`."""

    def __init__(
        self, text_config: Any, dtype: torch.dtype, device: torch.device, max_slots: int, max_tokens: int
    ) -> None:
        self._layers = text_config.num_hidden_layers
        self._heads = text_config.num_key_value_heads
        self._size = (
            getattr(text_config, "head_dim", None) or text_config.hidden_size // text_config.num_attention_heads
        )
        self._dtype, self._device = dtype, device
        self._max_slots, self._max_tokens = max_slots, max_tokens
        self.storage = self._blank(0, 0)
        self.lengths: list[int] = []

    def _blank(self, slots: int, capacity: int) -> Tensor:
        shape = (2 * self._layers, slots, self._heads, capacity, self._size)
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    @property
    def active(self) -> int:
        return len(self.lengths)

    def reserve(self, slots: int, tokens: int) -> None:
        """Grow the storage to at least `slots` slots of `tokens` positions."""
        _, old_slots, _, old_capacity, _ = self.storage.shape
        if slots <= old_slots and tokens <= old_capacity:
            return
        if slots > old_slots:
            slots = min(max(slots, 2 * old_slots), self._max_slots)
        if tokens > old_capacity:
            tokens = -(-max(tokens, min(old_capacity * 3 // 2, self._max_tokens)) // _CAPACITY_STEP) * _CAPACITY_STEP
        grown = self._blank(max(slots, old_slots), max(tokens, old_capacity))
        used = self.active
        grown[:, :used, :, :old_capacity] = self.storage[:, :used]
        self.storage = grown

    def open(self, prefix: Tensor | None, tokens: int) -> None:
        """Allocate the next slot for `tokens` positions.

        `prefix`: initial keys and values, [2 * layers, heads, length, size].
        """
        slot = self.active
        self.reserve(slot + 1, tokens)
        length = 0
        if prefix is not None:
            length = prefix.shape[2]
            self.storage[:, slot, :, :length] = prefix
        self.lengths.append(length)

    def read(self, slot: int) -> Tensor:
        """Return a copy of a slot, [2 * layers, heads, length, size]."""
        return self.storage[:, slot, :, : self.lengths[slot]].clone()

    def free(self, slot: int) -> None:
        """Free a slot by moving the last slot into it."""
        last = self.active - 1
        if slot != last:
            length = self.lengths[last]
            self.storage[:, slot, :, :length] = self.storage[:, last, :, :length]
            self.lengths[slot] = length
        self.lengths.pop()


class KVCacheView:
    """Cache and mask of the attention layers in one pass that adds `width` positions to `count` slots from `first`.
    New positions of row b follow its length; the owner adds the real ones to `lengths` afterwards."""

    def __init__(self, cache: KVCache, first: int, count: int, width: int) -> None:
        starts = cache.lengths[first : first + count]
        cache.reserve(first + count, max(starts) + width)
        self._keys = cache.storage[0::2, first : first + count]
        self._values = cache.storage[1::2, first : first + count]
        self._width = width
        device = cache.storage.device
        self._fresh = width > 1 and not any(starts)
        """Whether all rows are empty, so that causal attention over the new positions suffices."""
        if self._fresh:
            self.mask: Tensor | None = None
            return
        self._seen = max(starts) + width
        starts_B1 = torch.tensor(starts, device=device).unsqueeze(1)
        self._rows_B1 = torch.arange(count, device=device).unsqueeze(1)
        self._positions_BT = starts_B1 + torch.arange(width, device=device)
        keys_K = torch.arange(self._seen, device=device)
        self.mask = (keys_K <= self._positions_BT.unsqueeze(2)).unsqueeze(1)

    def update(self, key_BHTD: Tensor, value_BHTD: Tensor, layer: int, *unused: object) -> tuple[Tensor, Tensor]:
        """Store new keys and values of a layer and return all that its queries attend to.

        `unused`: what transformers 5.3 also passes, for caches that rotate their keys.
        """
        keys, values = self._keys[layer], self._values[layer]
        if self._fresh:
            keys[:, :, : self._width] = key_BHTD
            values[:, :, : self._width] = value_BHTD
            return key_BHTD, value_BHTD
        keys[self._rows_B1, :, self._positions_BT] = key_BHTD.transpose(1, 2)
        values[self._rows_B1, :, self._positions_BT] = value_BHTD.transpose(1, 2)
        return keys[:, :, : self._seen], values[:, :, : self._seen]
