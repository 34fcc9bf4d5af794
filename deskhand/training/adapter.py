"""Low-rank adapters. Invariant: whoever takes weights gets the checkpoint's own names and shapes, adapters merged in.

Adapters are injected in place by peft, so the forward pass needs to know nothing of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deskhand.errors import ConfigError
from deskhand.training.config import AdapterConfig

_NAME = "default"


def inject_adapter(model: Any, config: AdapterConfig) -> None:
    """Freeze `model` and add adapters to the named projections of its language model. Raises `ConfigError` when none match."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("adapter: the package peft is not installed; pip install peft") from error
    names = "|".join(config.targets)
    settings = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=0.0,
        target_modules=rf".*language_model\..*\.({names})",
    )
    try:
        inject_adapter_in_model(settings, model, adapter_name=_NAME)
    except ValueError as error:
        raise ConfigError(f"adapter.targets: the language model has no projection named {names}; name some that it has") from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


@torch.no_grad()
def merged_weights(model: Any) -> dict[str, Tensor]:
    """Copies of all weights under the checkpoint's names; tied tensors are one tensor under each of their names."""
    scaled = {
        f"{name}.weight": module.get_delta_weight(_NAME)
        for name, module in model.named_modules()
        if hasattr(module, "base_layer") and hasattr(module, "get_delta_weight")
    }
    copies: dict[int, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        if plain in scaled:
            weights[plain] = tensor + scaled[plain].to(tensor.dtype)
        else:
            key = tensor.data_ptr()
            if key not in copies:
                copies[key] = tensor.detach().clone()
            weights[plain] = copies[key]
    return weights
