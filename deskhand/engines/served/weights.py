"""Weights as files. Invariant: a checkpoint folder that has its name is whole."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deskhand.errors import InfrastructureError


def write_checkpoint(folder: Path, weights: Mapping[str, Any]) -> None:
    """A safetensors checkpoint that is whole when its folder has its name. Tensors that share memory are written once each."""
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
        save_file(plain, draft / "model.safetensors", metadata={"format": "pt"})
    except OSError as error:
        raise InfrastructureError(f"{draft}: the weights cannot be written ({error}); make room") from error
    draft.rename(folder)
