"""Transfer of an adapter to a server as files; a part of `benchmarks.gpu`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from deskhand.config.trainer import LoraConfig, PolicyConfig
from deskhand.engines.http_engine.weight_files import write_adapter
from deskhand.models import architectures
from deskhand.trainer.policy import Policy
from deskhand.types import LoraWeights


def time_adapter_files(rank: int) -> None:
    """Print the time to transfer a Qwen3-VL-4B adapter to a server: copy, write and read."""
    from safetensors.torch import load_file

    with torch.device("meta"):
        model = architectures.build(architectures.QWEN3_VL_4B).bfloat16()
        policy = Policy(model, PolicyConfig(lora=LoraConfig(rank=rank)))
    whole = sum(parameter.nbytes for name, parameter in model.named_parameters() if ".lora_" not in name)
    shapes = {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}
    weights = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in shapes.items()}
    assert weights.keys() == policy.parameters().keys()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        write_adapter(
            Path(folder, "adapter"), LoraWeights({name: value.clone() for name, value in weights.items()}, {"r": rank})
        )
        load_file(Path(folder, "adapter", "adapter_model.safetensors"))
        seconds = time.perf_counter() - began
    size = sum(value.nbytes for value in weights.values())
    found = f"{size / 2**20:.0f} MiB in {seconds:.2f} s (all weights: {whole / 2**20:.0f} MiB)"
    print(f"\nan adapter of Qwen3-VL-4B, rank {rank}, as files: {found}")
