"""A prompt longer than `engine.max_num_batched_tokens` is computed in chunks, and only its timing changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from patience import limit
from random_models import IMAGE, Conversation, build, wrap

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf import HfEngine
from deskhand.engines.hf.decode_batch import DecodeBatch
from deskhand.engines.hf.decode_request import DecodeRequest
from deskhand.models.load import LoadedModel
from deskhand.types import Completion, Prompt, Sampling

LONG = Prompt(tuple(random.Random(0).choices(range(140), k=900)))
SHORT = Prompt((1, 2, 3, 4, 5, 6, 7, 8))


def sampling(seed: int, tokens: int) -> Sampling:
    return Sampling(tokens, banned_ids=(IMAGE,), seed=seed)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(limit(60)):
        while not condition():  # noqa: ASYNC110 - the condition is the state of another thread
            await asyncio.sleep(0.0005)


def in_float64(loaded: LoadedModel) -> LoadedModel:
    """Convert a model, so that the order of its sums does not show in float32 log-probs."""
    loaded.model.double()
    loaded.model.set_experts_implementation("eager")  # the grouped product takes no float64
    return loaded


async def converse(engine: HfEngine, seed: int) -> list[Completion]:
    """Three turns: the second and third extend a finished request by more than a chunk."""
    talk, done = Conversation(seed), []
    for turn in range(3):
        for _ in range(3):
            prompt = talk.observe()
        done.append(await engine.generate(prompt, sampling(10 * seed + turn, 6)))
        assert done[-1].served_ids == prompt.token_ids
        talk.token_ids += done[-1].token_ids
    return done


async def serve(loaded: LoadedModel, budget: int) -> tuple[list[Completion], HfEngine]:
    engine = HfEngine(loaded, EngineConfig(max_num_seqs=4, max_num_batched_tokens=budget))
    try:
        talks = await asyncio.gather(*(converse(engine, seed) for seed in range(3)))
    finally:
        await engine.close()
    return [completion for talk in talks for completion in talk], engine


async def test_tokens_and_log_probs_are_those_of_whole_prompts(loaded: LoadedModel) -> None:
    in_float64(loaded)
    # transformers computes the linear attention of Qwen3.5 in float32, whatever the model's dtype.
    largest = 1e-4 if loaded.family.startswith("qwen3_5") else 2e-6
    whole, plain = await serve(loaded, 8192)
    assert plain.stats.chunks == 0
    for budget in (7, 32):  # 7 cuts within images
        parts, engine = await serve(loaded, budget)
        assert engine.stats.chunks > 15
        assert engine.stats.requests == 9
        assert engine.stats.prefill_tokens == plain.stats.prefill_tokens
        assert engine.stats.reused_tokens == plain.stats.reused_tokens
        assert engine.stats.images_encoded == plain.stats.images_encoded
        assert [one.token_ids for one in parts] == [one.token_ids for one in whole]
        gap = max(np.abs(np.subtract(a.logprobs, b.logprobs)).max() for a, b in zip(parts, whole, strict=True))
        print(f"{loaded.family}, chunks of {budget}: {engine.stats.chunks} chunks, max {gap:.1e} nat")
        assert gap < largest


async def test_requests_in_flight_decode_between_the_chunks_of_a_prompt() -> None:
    engine = HfEngine(wrap("qwen3_vl"), EngineConfig(max_num_seqs=4, max_model_len=2000, max_num_batched_tokens=50))
    running = asyncio.create_task(engine.generate(SHORT, sampling(0, 1500)))
    await until(lambda: engine.stats.decode_steps > 3)
    steps = engine.stats.decode_steps
    await engine.generate(LONG, sampling(1, 1))
    assert engine.stats.chunks == 17
    assert engine.stats.decode_steps - steps >= 17
    assert not running.done()
    running.cancel()
    await engine.close()


@torch.inference_mode()
def test_a_turn_computes_no_more_than_its_budget_in_order_of_arrival() -> None:
    loop = asyncio.new_event_loop()

    def request(length: int) -> DecodeRequest:
        return DecodeRequest(Prompt((1,) * length), sampling(0, 9), 9, loop.create_future(), random.Random(0))

    batch = DecodeBatch(wrap("qwen3_vl").model, EngineConfig(max_num_seqs=8, max_num_batched_tokens=40))
    waiting, admitted, computed = [request(length) for length in (30, 15, 100, 5, 10, 9)], [], []
    while waiting:
        before = batch.stats.prefill_tokens
        admitted.append(batch.admit(waiting, 0))
        computed.append(batch.stats.prefill_tokens - before)
        waiting = waiting[admitted[-1] :]
    assert admitted == [1, 1, 0, 0, 3, 1]
    assert computed == [30, 15, 40, 40, 35, 9]
    loop.close()


async def test_new_weights_restart_a_prompt_that_was_computed_in_part() -> None:
    engine = HfEngine(in_float64(wrap("qwen3_vl")), EngineConfig(max_model_len=2000, max_num_batched_tokens=8))
    call = asyncio.create_task(engine.generate(LONG, sampling(3, 8)))
    await until(lambda: engine.stats.chunks > 20)
    await engine.update_weights(7, build("qwen3_vl", seed=1).state_dict())
    assert engine.stats.chunks < 110, "the update came between two chunks"
    completion = await call
    await engine.close()
    other = HfEngine(in_float64(wrap("qwen3_vl", seed=1)), EngineConfig(max_model_len=2000))
    expected = await other.generate(LONG, sampling(3, 8))
    await other.close()
    assert completion.versions == (7,) * 8
    assert completion.token_ids == expected.token_ids
    assert completion.logprobs == pytest.approx(expected.logprobs, abs=2e-6)


async def test_a_cancelled_prompt_leaves_nothing_of_its_chunks() -> None:
    engine = HfEngine(wrap("qwen3_vl"), EngineConfig(max_model_len=2000, max_num_batched_tokens=8))
    call = asyncio.create_task(engine.generate(LONG, sampling(3, 8)))
    await until(lambda: engine.stats.chunks > 5)
    assert engine._batch._partial is not None
    call.cancel()
    await until(lambda: engine._batch._partial is None)
    assert (await engine.generate(SHORT, sampling(1, 4))).served_ids == SHORT.token_ids
    assert engine.stats.requests == 1
    await engine.close()
