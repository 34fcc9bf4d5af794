"""LoRA adapters: injection by peft, 4-bit base weights, export as merged weights or in peft's format.

Used by `trainer.policy`. Adapters are injected in place, so the forward pass is unchanged.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from deskhand.config.trainer import LoraConfig
from deskhand.errors import ConfigError
from deskhand.models.load import quiet_bitsandbytes
from deskhand.types import LoraWeights

_NAME = "default"
_VISION = ("qkv", "proj", "linear_fc1", "linear_fc2", "gate_proj", "up_proj", "down_proj")
"""Projections in the vision towers of Qwen3-VL and Qwen2.5-VL."""


def inject_lora(model: Any, config: LoraConfig) -> None:
    """Freeze `model` and add adapters to the target modules of its language model and, if configured, vision tower.

    Raises `ConfigError` if a target module does not exist, or peft or bitsandbytes is missing.
    """
    quiet_bitsandbytes()
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("policy.lora: peft is not installed; pip install peft") from error
    if config.load_in_4bit:
        check_quantizable(model)
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
            f"policy.lora.target_modules: unknown projection {names}; available: {', '.join(sorted(found))}"
        )
    inject_adapter_in_model(settings, model, adapter_name=_NAME)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(model.lm_head.weight.dtype)
            parameter.requires_grad_(True)
        elif parameter.requires_grad:
            parameter.requires_grad_(False)


def _modules(config: LoraConfig) -> str:
    """Return the regular expression of the adapted modules for peft."""
    tower = rf"|.*visual\.blocks\..*\.({'|'.join(_VISION)})" if config.vision else ""
    return rf"(.*language_model\..*\.({'|'.join(config.target_modules)}){tower})"


def peft_config(config: LoraConfig, base: str) -> dict[str, Any]:
    """Return the values of adapter_config.json; `base` names the base model."""
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
    """Return the name of an adapter parameter in peft's files."""
    return f"base_model.model.{parameter.replace(f'.{_NAME}.', '.')}"


@torch.no_grad()
def extract_lora(model: Any, config: LoraConfig) -> LoraWeights:
    """Return a copy of the adapter for an engine that holds the base model."""
    # Modules are listed one by one, since engines do not read peft's regular expressions.
    weights = {peft_key(name): value.detach().clone() for name, value in model.named_parameters() if ".lora_" in name}
    modules = [*config.target_modules, *(_VISION if config.vision else ())]
    return LoraWeights(weights, {**peft_config(config, ""), "target_modules": modules, "task_type": "CAUSAL_LM"})


@contextmanager
def lora_disabled(model: Any) -> Iterator[None]:
    layers = [part for part in model.modules() if hasattr(part, "base_layer") and hasattr(part, "enable_adapters")]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def merged_weights(model: Any, device: str | None = None) -> dict[str, Tensor]:
    """Return copies of all weights under the checkpoint's names with LoRA merged in, on `device` or in place.

    Tied weights share one tensor.
    """
    state = model.state_dict()  # first, since it restores the plain order of packed weights
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
        elif holder in packed:  # a new tensor, whose address may be reused by the next one
            weights[plain] = tensor.to(device or tensor.device)
        else:
            key = tensor.data_ptr()
            if key not in copies:
                copies[key] = tensor.detach().to(device or tensor.device, copy=True)
            weights[plain] = copies[key]
    return weights


def check_quantizable(model: Any) -> None:
    """Raise `ConfigError` for a model with experts: they are one tensor per layer, which would stay as it is."""
    if any(name.endswith(".experts") for name, _ in model.model.language_model.named_modules()):
        raise ConfigError("policy.lora.load_in_4bit: experts cannot be stored in 4 bits; set it to false")


def quantize_linear(model: Any) -> None:
    """Quantize the frozen projections of the language model in place, for QLoRA (arXiv:2305.14314).

    They become NF4 with double quantization; embeddings, norms, the head and the vision tower are unchanged. Raises
    `ConfigError` if bitsandbytes cannot be loaded.
    """
    library = _library()
    layers = model.model.language_model.layers
    for name, module in list(layers.named_modules()):
        if not isinstance(module, nn.Linear):
            continue
        packed = library.nn.Linear4bit(
            module.in_features,
            module.out_features,
            bias=module.bias is not None,
            compute_dtype=module.weight.dtype,
            quant_type="nf4",
            device="meta",
        )
        packed.weight = library.nn.Params4bit(module.weight.data, requires_grad=False, quant_type="nf4", module=packed)
        packed.bias = module.bias
        holder, _, last = name.rpartition(".")
        setattr(layers.get_submodule(holder), last, packed.to(module.weight.device))
    model.is_loaded_in_4bit = True  # peft checks this before it wraps such layers


def is_quantized(module: Any) -> bool:
    return getattr(getattr(module, "weight", None), "quant_state", None) is not None


def dequantize(module: Any) -> Tensor:
    """Return the weight of a quantized module in its compute precision."""
    weight = module.weight
    return _library().functional.dequantize_4bit(weight.data, weight.quant_state).to(module.compute_dtype)


def _library() -> Any:
    quiet_bitsandbytes()
    try:
        return importlib.import_module("bitsandbytes")
    except (ImportError, RuntimeError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"policy.lora.load_in_4bit: bitsandbytes cannot be loaded ({why}); pip install bitsandbytes"
        ) from error
