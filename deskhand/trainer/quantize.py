"""Frozen projections in 4 bits (QLoRA, arXiv:2305.14314). Invariant: only what is never trained is quantised, and whoever takes
weights gets them back in the model's own precision.

The projections of the language model's layers become NF4 with doubly quantised scales; embeddings, norms, the head and the vision
tower stay as they are. The numbers are those of bitsandbytes.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from deskhand.errors import ConfigError
from deskhand.models.load import quiet_bitsandbytes


def quantize_linear(model: Any) -> None:
    """Quantise in place, where the model lies. Raises `ConfigError` where bitsandbytes does not load."""
    library = _library()
    layers = model.model.language_model.layers
    for name, module in list(layers.named_modules()):
        if not isinstance(module, torch.nn.Linear):
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
    model.is_loaded_in_4bit = True  # peft asks for this before it wraps such layers


def is_quantized(module: Any) -> bool:
    """Whether a module's weight is packed."""
    return getattr(getattr(module, "weight", None), "quant_state", None) is not None


def dequantize(module: Any) -> Tensor:
    """The weight of a packed module, unpacked, in the precision that it computes in."""
    weight = module.weight
    return _library().functional.dequantize_4bit(weight.data, weight.quant_state).to(module.compute_dtype)


def _library() -> Any:
    quiet_bitsandbytes()
    try:
        return importlib.import_module("bitsandbytes")
    except (ImportError, RuntimeError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"policy.lora.load_in_4bit: the package bitsandbytes does not load ({why}); install it, or leave quantise out"
        ) from error
