"""Low-rank adapters. Invariant: whoever takes weights gets the checkpoint's own names and shapes, adapters merged in; whoever takes
an adapter gets what peft writes.

Adapters are injected in place by peft, so the forward pass needs to know nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from deskhand.config.trainer import LoraConfig
from deskhand.errors import ConfigError
from deskhand.models.load import quiet_bitsandbytes
from deskhand.trainer.quantize import dequantize, is_quantized, quantize_linear
from deskhand.types import LoraWeights

_NAME = "default"
_VISION = ("qkv", "proj", "linear_fc1", "linear_fc2", "gate_proj", "up_proj", "down_proj")
"""Projections of the blocks of Qwen3-VL's and Qwen2.5-VL's vision towers."""


def inject_lora(model: Any, config: LoraConfig) -> None:
    """Freeze `model` and add adapters, in its own precision, to the named projections of its language model, and to its vision
    tower where the settings say so. Raises `ConfigError` when one of the names is of no projection, and for 4 bits without their
    library."""
    quiet_bitsandbytes()
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("adapter: the package peft is not installed; pip install peft") from error
    if config.load_in_4bit:
        quantize_linear(model)
    settings = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=0.0,
        target_modules=_modules(config),
    )
    layers = model.model.language_model.named_modules()
    found = {name.rpartition(".")[2] for name, module in layers if isinstance(module, nn.Linear)}
    unknown = [name for name in config.target_modules if name not in found]
    if unknown or not config.target_modules:
        names = ", ".join(unknown) or "nothing"
        raise ConfigError(
            f"adapter.targets: the language model has no projection named {names}; it has {', '.join(sorted(found))}"
        )
    inject_adapter_in_model(settings, model, adapter_name=_NAME)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(model.lm_head.weight.dtype)
            parameter.requires_grad_(True)
        elif parameter.requires_grad:
            parameter.requires_grad_(False)


def _modules(config: LoraConfig) -> str:
    """The regular expression of the modules that get adapters, as peft takes it."""
    tower = rf"|.*visual\.blocks\..*\.({'|'.join(_VISION)})" if config.vision else ""
    return rf"(.*language_model\..*\.({'|'.join(config.target_modules)}){tower})"


def peft_config(config: LoraConfig, base: str) -> dict[str, Any]:
    """The values of adapter_config.json; `base` names the model below it."""
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": _modules(config),
        "inference_mode": True,
    }


def peft_key(parameter: str) -> str:
    """What peft calls a parameter of an adapter in its files."""
    return f"base_model.model.{parameter.replace(f'.{_NAME}.', '.')}"


@torch.no_grad()
def extract_lora(model: Any, config: LoraConfig) -> LoraWeights:
    """A copy of the model's adapter, for an engine that holds the model below it. Its modules are named one by one: engines do not
    read peft's regular expressions."""
    weights = {peft_key(name): value.detach().clone() for name, value in model.named_parameters() if ".lora_" in name}
    modules = [*config.target_modules, *(_VISION if config.vision else ())]
    return LoraWeights(weights, {**peft_config(config, ""), "target_modules": modules, "task_type": "CAUSAL_LM"})


@contextmanager
def lora_disabled(model: Any) -> Iterator[None]:
    """The model without its adapters, inside the block."""
    layers = [
        module for module in model.modules() if hasattr(module, "base_layer") and hasattr(module, "enable_adapters")
    ]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def merged_weights(model: Any, device: str | None = None) -> dict[str, Tensor]:
    """Copies of all weights under the checkpoint's names, on `device` (None: where they are), merged and copied one by one.

    Tied tensors are one tensor under each of their names.
    """
    state = model.state_dict()  # first: packed weights are put into their plain order by it
    packed = {name: module for name, module in model.named_modules() if is_quantized(module)}
    adapted = {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if hasattr(module, "base_layer") and hasattr(module, "get_delta_weight")
    }
    copies: dict[int, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        owner, of_packed, detail = name.partition(".weight.")
        if ".lora_" in name or (of_packed and detail and owner in packed):
            continue
        plain, holder = name.replace(".base_layer.", "."), name.removesuffix(".weight")
        if holder in packed:
            tensor = dequantize(packed[holder])
        if plain in adapted:
            merged: Tensor = tensor + adapted[plain].get_delta_weight(_NAME).to(tensor.dtype)
            weights[plain] = merged.to(device or merged.device)
        elif holder in packed:  # made just now: the next one may lie at the same place
            weights[plain] = tensor.to(device or tensor.device)
        else:
            key = tensor.data_ptr()
            if key not in copies:
                copies[key] = tensor.detach().to(device or tensor.device, copy=True)
            weights[plain] = copies[key]
    return weights
