"""A decoding step copies from the device to the host once, and nothing else makes the host wait."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from random_models import IMAGE, VOCABULARY, Conversation, wrap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf import sampler as sampler_module
from deskhand.engines.hf.decode_batch import DecodeBatch
from deskhand.engines.hf.decode_request import DecodeRequest
from deskhand.engines.hf.sampler import Sampler
from deskhand.models.load import LoadedModel
from deskhand.types import Prompt, Sampling

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
READS = {"tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero"}
"""Methods that need a tensor's values on the host."""
OPERATIONS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.item.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
}
SETTINGS = [
    Sampling(50, banned_ids=(IMAGE,)),
    Sampling(50, temperature=0.7, top_p=0.9, banned_ids=(IMAGE, 3)),
    Sampling(50, temperature=0, banned_ids=(IMAGE,), top_logprobs=2),
    Sampling(50, banned_ids=(IMAGE,), top_logprobs=5),
]


class Calls(TorchFunctionMode):
    """Counts calls from Python that read values."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in READS:
            self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Counts operations that read values, also those within torch."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in OPERATIONS:
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


class OddOnly:
    """A grammar whose replies have odd ids only."""

    def allowed(self) -> np.ndarray:
        return np.arange(VOCABULARY) % 2 == 1

    def take(self, token_id: int) -> None:
        assert token_id % 2


def batch_of(loaded: LoadedModel, prompts: Sequence[Prompt]) -> DecodeBatch:
    batch, loop = DecodeBatch(loaded.model, EngineConfig(max_num_seqs=8)), asyncio.new_event_loop()
    requests = [
        DecodeRequest(prompt, setting, 50, loop.create_future(), random.Random(index))
        for index, (prompt, setting) in enumerate(zip(prompts, SETTINGS, strict=True))
    ]
    requests[0].progress = OddOnly()  # type: ignore[assignment]
    assert batch.admit(requests, 0) == len(SETTINGS)
    loop.close()
    return batch


@torch.inference_mode()
def reads_of_a_step(loaded: LoadedModel) -> Counter[str]:
    """After one that prepares the settings of the rows."""
    batch = batch_of(loaded, [Conversation(seed).observe() for seed in range(len(SETTINGS))])
    batch.step(0)
    calls, operations = Calls(), Operations()
    with calls, operations:
        batch.step(0)
    assert all(len(request.token_ids) == 3 for request in batch.requests)
    assert sorted(len(request.top_logprobs) for request in batch.requests) == [0, 0, 3, 3]
    return calls.counts + operations.counts


def test_a_step_reads_one_tensor(loaded: LoadedModel) -> None:
    assert reads_of_a_step(loaded) == {"numpy": 1}


def test_a_second_read_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Sampler._draw

    def reading(self: Sampler, logprobs_BV: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
        ids_B = draw(self, logprobs_BV, uniforms)
        return torch.tensor(ids_B.tolist())

    monkeypatch.setattr(Sampler, "_draw", reading)
    assert reads_of_a_step(wrap("qwen3_vl")) == {"numpy": 1, "tolist": 1}
    monkeypatch.undo()

    def branching(values: torch.Tensor) -> np.ndarray:
        assert not values.isnan().any()
        return values.numpy()

    monkeypatch.setattr(sampler_module, "read_back", branching)
    found = reads_of_a_step(wrap("qwen3_vl"))
    assert found == {"numpy": 1, "__bool__": 1, "aten.is_nonzero.default": 1}


@needs_cuda
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
@torch.inference_mode()
def test_a_step_on_a_gpu_waits_only_for_its_result(family: str) -> None:
    """Torch raises an error if the host waits for the stream; waiting for the event of the copy is not that."""
    loaded = wrap(family)
    loaded.model.to("cuda")
    batch = batch_of(loaded, [Prompt(tuple(range(1, 10 + index))) for index in range(len(SETTINGS))])
    batch.step(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch.step(0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(len(request.token_ids) == 3 for request in batch.requests)
