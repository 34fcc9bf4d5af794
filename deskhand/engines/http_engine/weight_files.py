"""Weights as files. Invariant: a folder that has its name is whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deskhand.errors import InfrastructureError
from deskhand.types import LoraWeights

ADAPTER_CONFIG = "adapter_config.json"
"""The file by which a folder is known to hold an adapter."""


def write_checkpoint(folder: Path, weights: Mapping[str, Any]) -> None:
    """A safetensors checkpoint. Tensors that share memory are written once each."""
    _write(folder, "model.safetensors", weights)


def write_adapter(folder: Path, adapter: LoraWeights) -> None:
    """An adapter as peft reads it."""
    config = json.dumps(dict(adapter.config), indent=1) + "\n"
    _write(folder, "adapter_model.safetensors", adapter.weights, {ADAPTER_CONFIG: config})


def _write(folder: Path, file: str, weights: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> None:
    from safetensors.torch import save_file

    draft = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    draft.mkdir(parents=True)
    seen: set[int] = set()
    plain = {}
    for name, tensor in weights.items():
        if tensor.numel() and tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        plain[name] = tensor.detach().cpu().contiguous()
    try:
        save_file(plain, draft / file, metadata={"format": "pt"})
        for other, text in (texts or {}).items():
            (draft / other).write_text(text)
    except OSError as error:
        raise InfrastructureError(f"{draft}: the weights cannot be written ({error}); make room") from error
    draft.rename(folder)
