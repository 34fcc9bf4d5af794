"""Linear attention (gated delta rule, arXiv:2412.06464) of rows that are packed, padded or continued.

Used by `models.load` and `models.architectures`, which call `separate_rows`, and by the KV cache of `engines.hf`. Such
a layer keeps two states per row instead of keys and values: the last inputs of its convolution, and a matrix per head.
transformers' layer cannot tell packed rows apart, and padding on the right would change the states.
`SeparatedDeltaNet` calls it on each row instead.

Invariant: a row's output and states depend on its own tokens only.

Dimensions: L linear layers, B rows, C channels of the convolution, K its kernel, V value heads, D key and value sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from deskhand.errors import ConfigError
from deskhand.models.families import LINEAR
from deskhand.models.packed_attention import runs_of_rows

MODULE = "linear_attn"
"""Name of the layer in a decoder layer."""


@dataclass(frozen=True)
class StateShapes:
    """Sizes of the states of one row."""

    layers: tuple[int, ...]
    """Indices of the linear layers."""
    convolution: tuple[int, int] = (0, 0)
    """C, K; in the model's type."""
    matrices: tuple[int, int, int] = (0, 0, 0)
    """V, key D, value D; float32."""

    @classmethod
    def of(cls, layer_types: Sequence[str], text: Mapping[str, Any]) -> StateShapes:
        """`text`: `text_config` of config.json."""
        layers = tuple(index for index, kind in enumerate(layer_types) if kind == LINEAR)
        if not layers:
            return cls(())
        keys, values = text["linear_num_key_heads"], text["linear_num_value_heads"]
        key_size, value_size = text["linear_key_head_dim"], text["linear_value_head_dim"]
        channels = 2 * keys * key_size + values * value_size
        return cls(layers, (channels, text["linear_conv_kernel_dim"]), (values, key_size, value_size))

    def blank(self, slots: int, dtype: torch.dtype, device: Any) -> tuple[Tensor, ...]:
        """Return zero states of `slots` rows, [L, slots, C, K] and [L, slots, V, D, D]; none without linear layers."""
        if not self.layers:
            return ()
        sizes = ((self.convolution, dtype), (self.matrices, torch.float32))
        return tuple(torch.zeros(len(self.layers), slots, *size, dtype=kind, device=device) for size, kind in sizes)

    def bytes(self, size: int) -> int:
        """Return the bytes of one row's states in a model of `size` bytes per number."""
        (channels, kernel), (heads, keys, values) = self.convolution, self.matrices
        return len(self.layers) * (channels * kernel * size + heads * keys * values * 4)


class StateView:
    """States of some rows, in the form of a cache of transformers; a forward pass replaces them in place."""

    def __init__(self, shapes: StateShapes, states: Sequence[Tensor], widths: Sequence[int]) -> None:
        """`states`: [L, B, ...] of `StateShapes.blank`; `widths`: new tokens of each row, without padding."""
        self._shapes, self._states, self.widths = shapes, states, widths
        self._number = {layer: number for number, layer in enumerate(shapes.layers)}

    def row(self, index: int) -> StateView:
        """Return a view of one row."""
        return StateView(self._shapes, [part[:, index : index + 1] for part in self._states], self.widths[index:][:1])

    def get_conv_state(self, layer: int, state_idx: int = 0) -> Tensor:
        return self._states[0][self._number[layer]]

    def get_recurrent_state(self, layer: int, state_idx: int = 0) -> Tensor:
        return self._states[1][self._number[layer]]

    def is_recording_past(self, layer: int) -> bool:
        return False

    def update_conv_state(self, inputs_BCT: Tensor, layer: int, **_: object) -> Tensor:
        """Keep the last inputs of the convolution and return the earlier ones with the new ones."""
        state_BCK = self.get_conv_state(layer)
        joined = torch.cat([state_BCK.to(inputs_BCT.dtype), inputs_BCT], -1)
        state_BCK.copy_(joined[..., -state_BCK.shape[-1] :])
        return joined

    def update_recurrent_state(self, state_BVDD: Tensor, layer: int, **_: object) -> None:
        self.get_recurrent_state(layer).copy_(state_BVDD)


@cache
def _separated(kind: Any) -> Any:
    """Return the class of a transformers layer that keeps rows apart."""

    class SeparatedDeltaNet(kind):
        keeps_rows_apart = True

        def forward(
            self, hidden_states: Tensor, cache_params: Any = None, attention_mask: Any = None, **named: Any
        ) -> Tensor:
            """`cache_params`: object with `states`, a `StateView` of the rows. Without it and without bounds of packed
            rows (`cu_seq_lens_q`) this is transformers' own."""
            run, bounds = super().forward, named.get("cu_seq_lens_q")
            if bounds is not None:
                parts = [
                    run(hidden_states[0, start : start + count * length].unflatten(0, (count, length))).flatten(0, 1)
                    for start, count, length in runs_of_rows([int(edge) for edge in bounds])
                ]
                return torch.cat(parts).unsqueeze(0)
            states = getattr(cache_params, "states", None)
            if not isinstance(states, StateView):
                return run(hidden_states, cache_params, attention_mask, **named)
            if hidden_states.shape[1] == 1:
                return run(hidden_states, states)
            output_BTH = torch.zeros_like(hidden_states)
            for row, width in enumerate(states.widths):
                output_BTH[row, :width] = run(hidden_states[row : row + 1, :width], states.row(row))[0]
            return output_BTH

    return SeparatedDeltaNet


def linear_layers(model: Any) -> list[Any]:
    """Return the modules of a model that compute linear attention."""
    return [layer for name, layer in model.named_modules() if name.rpartition(".")[2] == MODULE]


def separate_rows(model: Any) -> None:
    """Let the linear-attention layers of a model keep rows apart, in place; without them nothing changes."""
    for layer in linear_layers(model):
        if not getattr(layer, "keeps_rows_apart", False):
            layer.__class__ = _separated(type(layer))


class _Cache:
    def __init__(self, states: StateView) -> None:
        self.states = states


@torch.no_grad()
def check_states(model: Any, shapes: StateShapes) -> None:
    """Raise `ConfigError` if a row that is continued token by token differs from the same row in one pass."""
    if not shapes.layers:
        return
    layer = linear_layers(model)[0]
    weight = layer.out_proj.weight
    generator = torch.Generator().manual_seed(0)
    whole_1TH = torch.randn(1, 9, weight.shape[0], generator=generator).to(weight.device, weight.dtype)
    states = shapes.blank(1, weight.dtype, weight.device)
    parts, tolerance = (whole_1TH[:, :6], *whole_1TH[:, 6:].split(1, 1)), 0.05 if weight.dtype.itemsize < 4 else 1e-3
    try:
        found = [layer(part, _Cache(StateView(shapes, states, [part.shape[1]]))) for part in parts]
        expected_1TH = layer(whole_1TH)
        gap = (torch.cat(found, 1) - expected_1TH).abs().max() / expected_1TH.abs().max()
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"transformers: unknown form of linear attention ({error}); install 5.23") from error
    if not gap <= tolerance:
        raise ConfigError("transformers: states of linear attention differ; install the pinned version")
