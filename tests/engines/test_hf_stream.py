"""The engine's stream is ordered with the trainer's whenever weights change hands.

Without a GPU, the order of the calls is tested; on one, that the order of the kernels follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch
from patience import limit
from random_models import IMAGE, Conversation, build, wrap

from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import LoraConfig, PolicyConfig
from deskhand.engines.hf import HfEngine
from deskhand.engines.hf.decode_batch import DecodeBatch
from deskhand.engines.hf.stream import EngineStream
from deskhand.trainer.policy import Policy
from deskhand.types import Prompt, Sampling

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TEXT = Prompt((1, 2, 3, 4, 5, 6, 7, 8))
ENDLESS = Sampling(1500, banned_ids=(IMAGE,), seed=0)
LOGGED = [
    (EngineStream, "wait_for_engine"),
    (EngineStream, "wait_for_caller"),
    (EngineStream, "lend"),
    (EngineStream, "finish"),
    (DecodeBatch, "step"),
    (DecodeBatch, "load_weights"),
    (DecodeBatch, "clear_caches"),
]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the calls, in their order; each is logged when it begins."""
    calls: list[str] = []

    def logged(kind: Any, name: str) -> Callable[..., Any]:
        real = getattr(kind, name)

        def call(*arguments: Any) -> Any:
            calls.append(name)
            return real(*arguments)

        return call

    for kind, name in LOGGED:
        monkeypatch.setattr(kind, name, logged(kind, name))
    return calls


@pytest.fixture
async def engine(log: list[str]) -> AsyncIterator[HfEngine]:
    """An engine with a request in flight."""
    engine = HfEngine(wrap("qwen3_vl"), EngineConfig(max_num_seqs=4, max_model_len=2000))
    running = asyncio.create_task(engine.generate(TEXT, ENDLESS))
    await steps(log)
    yield engine
    running.cancel()
    await engine.close()
    assert log[-1] == "finish", "memory of the engine's tensors is free for other streams after this"


async def steps(log: list[str]) -> None:
    """Wait for steps from now on."""
    before = log.count("step")
    async with asyncio.timeout(limit(60)):
        while log.count("step") < before + 2:  # noqa: ASYNC110 - the condition is the state of another thread
            await asyncio.sleep(0.001)


def test_the_engine_starts_after_the_weights_were_loaded(log: list[str]) -> None:
    engine = HfEngine(wrap("qwen3_vl"))
    assert log == ["wait_for_caller"]
    asyncio.run(engine.close())


async def test_shared_weights_change_between_the_last_use_and_the_next(engine: HfEngine, log: list[str]) -> None:
    log.append("update")
    await asyncio.to_thread(engine.pause_for_update)
    log.append("write")
    await asyncio.sleep(0.05)
    await engine.set_version(1)
    await steps(log)
    log = log[log.index("update") + 1 :]
    held, write, waited = (log.index(name) for name in ("wait_for_engine", "write", "wait_for_caller"))
    assert "step" not in log[held:waited]
    assert log[held : write + 1] == ["wait_for_engine", "write"]
    assert log[write : waited + 3] == ["write", "wait_for_caller", "clear_caches", "step"]


async def test_weights_that_are_changed_and_restored_are_ordered_too(engine: HfEngine, log: list[str]) -> None:
    with engine.paused_for_update():
        log.append("write")
        log.append("restore")
    await steps(log)
    write = log.index("write")
    assert log[write - 1 : write + 4] == ["wait_for_engine", "write", "restore", "wait_for_caller", "step"]


@pytest.mark.parametrize("lora", [False, True])
async def test_published_weights_are_read_after_their_writer_and_given_back_unused(
    engine: HfEngine, log: list[str], lora: bool
) -> None:
    log.append("publish")
    if lora:
        adapter = Policy(build("qwen3_vl"), PolicyConfig(lora=LoraConfig(rank=2))).adapter()
        assert adapter is not None
        await engine.update_lora(1, adapter)
    else:
        await engine.update_weights(1, build("qwen3_vl", seed=1).state_dict())
    log.append("free")
    log = [name for name in log[log.index("publish") :] if name != "step"]
    loading = ["clear_caches"] if lora else ["load_weights", "clear_caches"]
    assert log == ["publish", "wait_for_caller", *loading, "finish", "free"]


async def test_features_are_lent_to_the_stream_that_asks(engine: HfEngine, log: list[str]) -> None:
    prompt = Conversation(1).observe()
    await engine.generate(prompt, Sampling(1, banned_ids=(IMAGE,)))
    log.clear()
    assert engine.image_features("nothing") is None
    assert "lend" not in log
    assert engine.image_features(prompt.spans[0].sha256) is not None
    assert "lend" in log


@needs_cuda
async def test_on_a_gpu_the_engine_waits_for_weights_that_are_being_written() -> None:
    """The caller's stream is kept busy before it writes; an engine that did not wait would read the old values."""
    loaded, prompt = wrap("qwen3_vl"), Conversation(1).observe()
    loaded.model.to("cuda")
    new = {name: value.cuda() for name, value in build("qwen3_vl", seed=1).state_dict().items()}
    other = wrap("qwen3_vl", seed=1)
    other.model.to("cuda")
    engine, expecting = HfEngine(loaded), HfEngine(other)
    sampling = Sampling(12, banned_ids=(IMAGE,), seed=3)
    try:
        expected = await expecting.generate(prompt, sampling)
        await engine.generate(prompt, sampling)
        sent = {name: torch.zeros_like(value) for name, value in new.items()}
        torch.cuda._sleep(500_000_000)
        for name, value in sent.items():
            value.copy_(new[name])
        await engine.update_weights(1, sent)
        published = await engine.generate(prompt, sampling)
        engine.pause_for_update()
        torch.cuda._sleep(500_000_000)
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                parameter.mul_(0.0)
            for name, parameter in loaded.model.named_parameters():
                parameter.copy_(new[name])
        await engine.set_version(2)
        shared = await engine.generate(prompt, sampling)
    finally:
        await engine.close()
        await expecting.close()
    for found in (published, shared):
        assert found.token_ids == expected.token_ids
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@needs_cuda
def test_on_a_gpu_the_engine_has_a_stream_of_higher_priority() -> None:
    device = torch.device("cuda")
    stream = EngineStream(device)
    with stream.current():
        own = torch.cuda.current_stream(device)
    assert own != torch.cuda.current_stream(device)
    assert own.priority < torch.cuda.current_stream(device).priority
