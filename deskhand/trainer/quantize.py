"""4-bit quantization of frozen projections for QLoRA (arXiv:2305.14314), by bitsandbytes.

Used by `trainer.lora`. The projections of the language model become NF4 with double quantization; embeddings, norms,
the head and the vision tower are unchanged.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from deskhand.errors import ConfigError
from deskhand.models.load import quiet_bitsandbytes


def quantize_linear(model: Any) -> None:
    """Quantize the projections in place. Raises `ConfigError` if bitsandbytes cannot be loaded."""
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
    model.is_loaded_in_4bit = True  # peft checks this before it wraps such layers


def is_quantized(module: Any) -> bool:
    """Return whether the weight of a module is quantized."""
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
