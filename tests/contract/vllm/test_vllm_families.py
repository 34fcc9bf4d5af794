"""A real vLLM that serves other families than the bundled policy's: what it samples is what the trainer scores, before
and after weights are published. vLLM serves linear attention on processors in bfloat16 only, so the bound is the
trainer's own rounding there: bfloat16 against float32. `DESKHAND_TEST_FULL=1` serves all families."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from full import FULL
from random_models import save_with_bundled_tokenizer
from test_vllm import BAR, differences, record, told
from vllm_serving import Served, serving

from deskhand.models.load import load
from deskhand.trainer.policy import Policy
from deskhand.trainer.weight_sync import push_weights

WITH_STATES = ("qwen3_5", "qwen3_5_moe") if FULL else ("qwen3_5",)
OTHERS = ("qwen3_vl_moe", "qwen2_5_vl", "qwen3_vl") if FULL else ("qwen3_vl_moe",)
ROUNDINGS = 2
"""vLLM's mean difference from float32, in those of the trainer in bfloat16."""
SCALES = (1.0, 1.1)
"""The weights of version 0, and of version 1 in those of version 0."""


def policy_of(checkpoint: Path, served: Served, dtype: torch.dtype, scale: float, rounded: str) -> Policy:
    """The served weights times `scale`, rounded to the type `rounded`, computed in `dtype`."""
    model = load(str(checkpoint), dtype=rounded).model
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(scale)
    return Policy(model.to(dtype), banned_ids=served.renderer.banned_ids)


def mean(name: str, found: np.ndarray) -> float:
    told(name, found)
    return float(np.abs(found).mean())


@pytest.mark.parametrize("family", WITH_STATES)
async def test_linear_attention_is_served_as_it_is_trained(python: Path, tmp_path: Path, family: str) -> None:
    torch.set_num_threads(1)
    checkpoint = save_with_bundled_tokenizer(tmp_path / "model", family)
    served = serving(python, tmp_path / "run", "bfloat16", checkpoint=checkpoint)
    try:
        await served.engine.start()
        for version, scale in enumerate(SCALES):
            trained = policy_of(checkpoint, served, torch.bfloat16, scale, "bfloat16")
            exact = policy_of(checkpoint, served, torch.float32, scale, "bfloat16")
            if version:
                await push_weights(trained, served.engine, version)
            graphs = await record(served, [2 * version + 1, 2 * version + 2], 3, pictures=True)
            assert {number for _, _, done in served.completions[-6:] for number in done.versions} == {version}
            from_vllm = differences(served, graphs, exact)
            rounding = from_vllm - differences(served, graphs, trained)
            bound = ROUNDINGS * mean(f"{family}, bfloat16, the trainer against float32", rounding)
            assert mean(f"{family}, bfloat16, vLLM against float32, version {version}", from_vllm) < bound
            other = policy_of(checkpoint, served, torch.float32, SCALES[1 - version], "bfloat16")
            assert mean(f"{family}, against other weights", differences(served, graphs, other)) > bound
    finally:
        await served.engine.close()


@pytest.mark.parametrize("family", OTHERS)
async def test_other_families_are_served_as_they_are_trained(python: Path, tmp_path: Path, family: str) -> None:
    """In float32. Experts are published in the layout of checkpoints, which vLLM packs again."""
    torch.set_num_threads(1)
    checkpoint = save_with_bundled_tokenizer(tmp_path / "model", family)
    served = serving(python, tmp_path / "run", "float32", checkpoint=checkpoint)
    try:
        await served.engine.start()
        policies = [policy_of(checkpoint, served, torch.float32, scale, "float32") for scale in SCALES]
        for version, policy in enumerate(policies):
            if version:
                await push_weights(policy, served.engine, version)
            graphs = await record(served, [2 * version + 1, 2 * version + 2], 3, pictures=True)
            assert told(f"{family}, float32, version {version}", differences(served, graphs, policy)) < BAR
            other = differences(served, graphs, policies[1 - version])
            assert told(f"{family}, against other weights", other) > 10 * BAR
    finally:
        await served.engine.close()
