"""LoRA adapter applied to the engine's model. Used by `hf.engine`.

The adapter is not merged, as in the trainer, so that both compute the same values and only its few tensors are copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deskhand.errors import ConfigError
from deskhand.models.load import quiet_bitsandbytes
from deskhand.types import LoraWeights

_PREFIX = "base_model.model."
"""Prefix of module names in peft's files."""
_NAME = "published"


class LoraOverlay:
    """The adapter of a model; its modules are added when the first adapter is applied."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tensors: dict[str, Tensor] = {}
        """Adapter tensors by peft's names."""

    def check(self, adapter: LoraWeights) -> None:
        """Raise `ConfigError` if an adapter does not fit the model."""
        if not adapter.weights:
            raise ConfigError("adapter: no weights; publish the full model")
        if self._tensors and self._tensors.keys() != adapter.weights.keys():
            raise ConfigError("adapter: projections differ from those of the previous adapter; start another engine")
        rank = adapter.config["r"]
        for name, value in adapter.weights.items():
            owner, _, side = name.removeprefix(_PREFIX).rpartition(".lora_")
            try:
                found = self._model.get_submodule(owner)
            except AttributeError:
                found = None
            found = getattr(found, "base_layer", found)
            if not isinstance(found, nn.Linear) or side not in ("A.weight", "B.weight"):
                raise ConfigError(f"adapter {name!r}: unknown projection; change the adapter's target modules")
            expected = (rank, found.in_features) if side[0] == "A" else (found.out_features, rank)
            if tuple(value.shape) != expected:
                raise ConfigError(
                    f"adapter {name!r}: expected shape {expected} for rank {rank}, got {tuple(value.shape)}"
                )

    @torch.no_grad()
    def apply(self, adapter: LoraWeights) -> None:
        """Copy an adapter's weights; call it after `check`, between two steps."""
        if not self._tensors:
            self._inject(adapter)
        for name, value in adapter.weights.items():
            self._tensors[name].copy_(torch.as_tensor(value))

    @torch.no_grad()
    def clear(self) -> None:
        """Disable the adapter, for weights with it merged in."""
        for name, tensor in self._tensors.items():
            if ".lora_B." in name:
                tensor.zero_()

    def _inject(self, adapter: LoraWeights) -> None:
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
                self._tensors[_PREFIX + name.replace(f".{_NAME}.", ".")] = parameter.requires_grad_(False)
        self._model.eval()
