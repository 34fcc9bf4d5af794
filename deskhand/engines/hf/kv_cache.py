"""KV cache of the requests in flight. Used by `hf.decode_batch`.

One tensor [2 * layers, slots, key heads, capacity, head size] has the keys of attention layer l at 2l and its values at
2l + 1. The used slots come first, so a decoding step attends to plain views without gathering. Values past a slot's
length are finite and masked. Layers with linear attention have states of fixed size (`models.linear_attention`).

Invariant: slot b has `lengths[b]` valid positions, and states after exactly these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deskhand.models.architectures import attention_layers, state_shapes
from deskhand.models.linear_attention import StateView
from deskhand.models.transfer import to_device

_CAPACITY_STEP = 128


class SlotContent(NamedTuple):
    """What the model keeps of a row."""

    keys_values: Tensor
    """[2 * layers, heads, length, size]"""
    states: tuple[Tensor, ...] = ()
    """After `length` tokens, [layers, ...]; empty without linear attention."""


class KVCache:
    """Storage that grows on demand to at most `max_slots` x `max_tokens`."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device, max_slots: int, max_tokens: int) -> None:
        values, text_config = config.to_dict(), config.text_config
        self.layers = attention_layers(values)
        """Indices of the layers with keys and values."""
        self.shapes = state_shapes(values)
        self._heads = text_config.num_key_value_heads
        self._size = (
            getattr(text_config, "head_dim", None) or text_config.hidden_size // text_config.num_attention_heads
        )
        self._dtype, self._device = dtype, device
        self._max_slots, self._max_tokens = max_slots, max_tokens
        self.storage = self._blank(0, 0)
        self.states = self.shapes.blank(0, dtype, device)
        self.lengths: list[int] = []

    def _blank(self, slots: int, capacity: int) -> Tensor:
        shape = (2 * len(self.layers), slots, self._heads, capacity, self._size)
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
        if slots > old_slots:
            states = self.shapes.blank(slots, self._dtype, self._device)
            for new, old in zip(states, self.states, strict=True):
                new[:, :used] = old[:, :used]
            self.states = states

    def open(self, prefix: SlotContent | None, tokens: int) -> None:
        """Allocate the next slot for `tokens` positions, of which `prefix` has the first."""
        slot = self.active
        self.reserve(slot + 1, tokens)
        length = 0
        if prefix is not None:
            length = prefix.keys_values.shape[2]
            self.storage[:, slot, :, :length] = prefix.keys_values
        for number, state in enumerate(self.states):
            state[:, slot] = prefix.states[number] if prefix is not None else 0
        self.lengths.append(length)

    def read(self, slot: int) -> SlotContent:
        """Return a copy of a slot."""
        keys_values = self.storage[:, slot, :, : self.lengths[slot]].clone()
        return SlotContent(keys_values, tuple(state[:, slot].clone() for state in self.states))

    def free(self, slot: int) -> None:
        """Free a slot by moving the last slot into it."""
        last = self.active - 1
        if slot != last:
            length = self.lengths[last]
            self.storage[:, slot, :, :length] = self.storage[:, last, :, :length]
            for state in self.states:
                state[:, slot] = state[:, last]
            self.lengths[slot] = length
        self.lengths.pop()


class KVCacheView:
    """Cache and mask of the attention layers in one pass that adds `widths[b]` positions to slot `first` + b, padded on
    the right. New positions of a row follow its length; the owner adds them to `lengths` afterwards."""

    def __init__(self, cache: KVCache, first: int, widths: Sequence[int]) -> None:
        count, width = len(widths), max(widths)
        starts = cache.lengths[first : first + count]
        cache.reserve(first + count, max(starts) + width)
        self._keys = cache.storage[0::2, first : first + count]
        self._values = cache.storage[1::2, first : first + count]
        self._number = {layer: number for number, layer in enumerate(cache.layers)}
        self.states = StateView(cache.shapes, [state[:, first : first + count] for state in cache.states], widths)
        self._width = width
        device = cache.storage.device
        self._fresh = width > 1 and not any(starts)
        """Whether all rows are empty, so that causal attention over the new positions suffices."""
        if self._fresh:
            self.mask: Tensor | None = None
            return
        self._seen = max(starts) + width
        starts_B1 = to_device(torch.tensor(starts).unsqueeze(1), device)
        self._rows_B1 = torch.arange(count, device=device).unsqueeze(1)
        self._positions_BT = starts_B1 + torch.arange(width, device=device)
        keys_K = torch.arange(self._seen, device=device)
        self.mask = (keys_K <= self._positions_BT.unsqueeze(2)).unsqueeze(1)

    def update(self, key_BHTD: Tensor, value_BHTD: Tensor, layer: int, *unused: object) -> tuple[Tensor, Tensor]:
        """Store new keys and values of a layer and return all that its queries attend to.

        `unused`: what transformers 5.3 also passes, for caches that rotate their keys.
        """
        number = self._number[layer]
        keys, values = self._keys[number], self._values[number]
        if self._fresh:
            keys[:, :, : self._width] = key_BHTD
            values[:, :, : self._width] = value_BHTD
            return key_BHTD, value_BHTD
        keys[self._rows_B1, :, self._positions_BT] = key_BHTD.transpose(1, 2)
        values[self._rows_B1, :, self._positions_BT] = value_BHTD.transpose(1, 2)
        return keys[:, :, : self._seen], values[:, :, : self._seen]
