"""A real vLLM that serves a model with linear attention: what it samples is what the trainer scores, before and after
weights are published. vLLM serves such models on processors in bfloat16 only, so the bound is the trainer's own
rounding: bfloat16 against float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from random_models import save_with_bundled_tokenizer
from test_vllm import differences, record, told
from vllm_serving import Served, serving

from deskhand.models.load import load
from deskhand.trainer.policy import Policy

ROUNDINGS = 2
"""vLLM's mean difference from float32, in those of the trainer in bfloat16."""
SCALES = (1.0, 1.1)
"""The weights of version 0, and of version 1 in those of version 0."""


def policy_of(checkpoint: Path, served: Served, dtype: torch.dtype, scale: float = 1.0) -> Policy:
    """The served weights times `scale`, rounded to bfloat16, computed in `dtype`."""
    model = load(str(checkpoint), dtype="bfloat16").model
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(scale)
    return Policy(model.to(dtype), banned_ids=served.renderer.banned_ids)


def mean(name: str, found: np.ndarray) -> float:
    told(f"qwen3_5, bfloat16, {name}", found)
    return float(np.abs(found).mean())


async def test_qwen3_5_is_served_as_it_is_trained(python: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    checkpoint = save_with_bundled_tokenizer(tmp_path / "model")
    served = serving(python, tmp_path / "run", "bfloat16", checkpoint=checkpoint)
    try:
        await served.engine.start()
        for version, scale in enumerate(SCALES):
            trained = policy_of(checkpoint, served, torch.bfloat16, scale)
            exact = policy_of(checkpoint, served, torch.float32, scale)
            if version:
                await served.engine.update_weights(version, trained.snapshot())
            graphs = await record(served, [2 * version + 1, 2 * version + 2], 3, pictures=True)
            assert {number for _, _, done in served.completions[-6:] for number in done.versions} == {version}
            from_vllm = differences(served, graphs, exact)
            rounding = from_vllm - differences(served, graphs, trained)
            bound = ROUNDINGS * mean("the trainer against float32", rounding)
            assert mean(f"vLLM against float32, version {version}", from_vllm) < bound
            other = policy_of(checkpoint, served, torch.float32, SCALES[1 - version])
            assert mean("against other weights", differences(served, graphs, other)) > bound
    finally:
        await served.engine.close()
