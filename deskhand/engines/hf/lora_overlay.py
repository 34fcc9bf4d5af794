"""An adapter in the engine's own model. Invariant: the model computes with the adapter that was published last, or with none.

The adapter stays beside the weights, as in the trainer, so that both compute the same and only its few tensors are handed over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deskhand.errors import ConfigError
from deskhand.models.load import quiet_bitsandbytes
from deskhand.types import LoraWeights

_PREFIX = "base_model.model."
"""Before the names of a model's own parts in peft's files."""
_NAME = "published"


class LoraOverlay:
    """What is laid over a model. Nothing is added to it before the first adapter comes."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._places: dict[str, Tensor] = {}
        """By peft's names."""

    def check(self, adapter: LoraWeights) -> None:
        """Raise `ConfigError` unless the model has the projections that the adapter is for, and room of its rank."""
        if not adapter.weights:
            raise ConfigError("the adapter has no weights; publish the whole model")
        if self._places and self._places.keys() != adapter.weights.keys():
            raise ConfigError("the adapter is for other projections than the one before; start another engine")
        rank = adapter.config["r"]
        for name, value in adapter.weights.items():
            owner, _, side = name.removeprefix(_PREFIX).rpartition(".lora_")
            try:
                found = self._model.get_submodule(owner)
            except AttributeError:
                found = None
            found = getattr(found, "base_layer", found)
            if not isinstance(found, nn.Linear) or side not in ("A.weight", "B.weight"):
                raise ConfigError(
                    f"adapter {name!r}: the engine's model has no such projection; name others in adapter.targets"
                )
            expected = (rank, found.in_features) if side[0] == "A" else (found.out_features, rank)
            if tuple(value.shape) != expected:
                raise ConfigError(
                    f"adapter {name!r}: shape {tuple(value.shape)}, rank {rank} and the engine's model make {expected}"
                )

    @torch.no_grad()
    def apply(self, adapter: LoraWeights) -> None:
        """Take the adapter's weights; call it after `check`, between two steps."""
        if not self._places:
            self._make_room(adapter)
        for name, value in adapter.weights.items():
            self._places[name].copy_(torch.as_tensor(value))

    @torch.no_grad()
    def clear(self) -> None:
        """Compute without an adapter from now on: for weights that have it merged in."""
        for name, place in self._places.items():
            if ".lora_B." in name:
                place.zero_()

    def _make_room(self, adapter: LoraWeights) -> None:
        quiet_bitsandbytes()
        from peft import LoraConfig, inject_adapter_in_model

        owners = sorted({name.removeprefix(_PREFIX).rpartition(".lora_")[0] for name in adapter.weights})
        settings = LoraConfig(
            r=adapter.config["r"], lora_alpha=adapter.config["lora_alpha"], lora_dropout=0.0, target_modules=owners
        )
        inject_adapter_in_model(settings, self._model, adapter_name=_NAME)
        for name, parameter in self._model.named_parameters():
            if f".{_NAME}." in name:
                parameter.data = parameter.data.to(self._model.lm_head.weight.dtype)
                self._places[_PREFIX + name.replace(f".{_NAME}.", ".")] = parameter.requires_grad_(False)
        self._model.eval()
