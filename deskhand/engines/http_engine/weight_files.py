"""Weights as safetensors files for a server. Used by `http_engine.engine`; a folder is renamed when it is complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deskhand.errors import InfrastructureError
from deskhand.types import LoraWeights

ADAPTER_CONFIG = "adapter_config.json"
"""File that marks a folder as an adapter."""


def write_checkpoint(folder: Path, weights: Mapping[str, Any]) -> None:
    """Write a safetensors checkpoint. Tensors that share memory are written once."""
    _write(folder, "model.safetensors", weights)


def write_adapter(folder: Path, adapter: LoraWeights) -> None:
    """Write an adapter in peft's format."""
    config = json.dumps(dict(adapter.config), indent=1) + "\n"
    _write(folder, "adapter_model.safetensors", adapter.weights, {ADAPTER_CONFIG: config})


def _write(folder: Path, file: str, weights: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> None:
    from safetensors.torch import save_file

    partial = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    partial.mkdir(parents=True)
    seen: set[int] = set()
    tensors = {}
    for name, tensor in weights.items():
        if tensor.numel() and tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        tensors[name] = tensor.detach().cpu().contiguous()
    try:
        save_file(tensors, partial / file, metadata={"format": "pt"})
        for other, text in (texts or {}).items():
            (partial / other).write_text(text)
    except OSError as error:
        raise InfrastructureError(f"{partial}: weights cannot be written ({error}); free disk space") from error
    partial.rename(folder)
