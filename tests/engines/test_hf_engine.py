"""How requests share the engine: joining, stopping, new weights on the way, cancelled callers, failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch
from patience import limit
from random_models import IMAGE, STOP, VOCABULARY, Conversation, build, image, wrap

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf import HfEngine
from deskhand.errors import AgentError, ConfigError, InfrastructureError, RecordError
from deskhand.models.load import LoadedModel
from deskhand.types import ImageSpan, Prompt, Sampling

TEXT = Prompt((1, 2, 3, 4, 5, 6, 7, 8))
ALL_BUT_STOP = tuple(index for index in range(VOCABULARY) if index != STOP)


@pytest.fixture
async def engine() -> AsyncIterator[HfEngine]:
    engine = HfEngine(wrap("qwen3_vl"), EngineConfig(max_num_seqs=4, max_model_len=1500))
    yield engine
    await engine.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(limit(60)):
        while not condition():  # noqa: ASYNC110 - the condition is the state of another thread
            await asyncio.sleep(0.001)


def endless(seed: int = 0, tokens: int = 1000) -> Sampling:
    return Sampling(tokens, banned_ids=(IMAGE,), seed=seed)


async def test_a_request_joins_while_another_decodes(engine: HfEngine) -> None:
    long = asyncio.create_task(engine.generate(TEXT, endless(tokens=200)))
    await until(lambda: engine.stats.decode_steps > 20)
    at_joining = engine.stats.decode_steps
    short = await engine.generate(Prompt((9, 8, 7)), endless(1, tokens=20))
    assert not long.done()
    assert len(short.token_ids) == 20
    assert engine.stats.decode_steps - at_joining < 60, "the newcomer did not wait for the other request"
    assert len((await long).token_ids) == 200
    assert engine.stats.decode_steps == 199, "each of the newcomer's steps was one of the other request's"
    assert engine.stats.largest_batch == 2


async def test_more_requests_than_slots_wait_and_are_served(engine: HfEngine) -> None:
    done = await asyncio.gather(*(engine.generate(TEXT, endless(seed, 12)) for seed in range(11)))
    assert [len(completion.token_ids) for completion in done] == [12] * 11
    assert engine.stats.largest_batch == 4


async def test_the_same_seed_gives_the_same_tokens_whatever_else_is_served(engine: HfEngine) -> None:
    talk = Conversation(5).observe()
    alone = await engine.generate(talk, endless(42, 30))
    others = [
        asyncio.create_task(engine.generate(Conversation(seed).observe(), endless(seed, 40))) for seed in range(8)
    ]
    again = await engine.generate(talk, endless(42, 30))
    await asyncio.gather(*others)
    assert again.token_ids == alone.token_ids
    assert (await engine.generate(talk, endless(43, 30))).token_ids != alone.token_ids


async def test_tokens_after_a_publication_come_from_the_new_weights(engine: HfEngine) -> None:
    talk = Conversation(3).observe()
    running = asyncio.create_task(engine.generate(talk, endless(tokens=300)))
    await until(lambda: engine.stats.decode_steps > 30)
    await engine.update_weights(7, build("qwen3_vl", seed=1).state_dict())
    assert engine.version == 7
    completion = await running
    switch = completion.versions.index(7)
    assert 30 < switch < 300
    assert completion.versions == (0,) * switch + (7,) * (300 - switch)
    fresh = await engine.generate(talk, endless(9, 12))
    assert fresh.versions == (7,) * 12
    other = HfEngine(wrap("qwen3_vl", seed=1))
    expected = await other.generate(talk, endless(9, 12))
    await other.close()
    assert fresh.token_ids == expected.token_ids
    assert fresh.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_weights_are_loaded_completely_or_not_at_all(engine: HfEngine) -> None:
    new = build("qwen3_vl", seed=1).state_dict()
    before = await engine.generate(TEXT, endless(tokens=5))
    with pytest.raises(ConfigError, match=r"'model\.nothing'"):
        await engine.update_weights(1, {**new, "model.nothing": torch.zeros(1)})
    with pytest.raises(ConfigError, match="shape"):
        await engine.update_weights(1, {**new, "lm_head.weight": torch.zeros(3, 3)})
    assert engine.version == 0
    assert (await engine.generate(TEXT, endless(tokens=5))).logprobs == pytest.approx(before.logprobs, abs=1e-5)


async def test_an_image_is_encoded_once_for_each_version_of_the_vision_tower(engine: HfEngine) -> None:
    talk = Conversation(1)
    for _ in range(3):
        await engine.generate(talk.observe(), endless(tokens=2))
    prompt = talk.observe()
    await asyncio.gather(*(engine.generate(prompt, endless(seed, 2)) for seed in range(6)))
    assert engine.stats.images_encoded == 4
    weights = build("qwen3_vl", seed=0).state_dict()
    await engine.update_weights(1, {name: value + 0.01 for name, value in weights.items() if ".visual." not in name})
    await engine.generate(prompt, endless(tokens=2))
    assert engine.stats.images_encoded == 4, "the tower did not change"
    await engine.update_weights(2, {name: value + 0.01 for name, value in weights.items()})
    await engine.generate(prompt, endless(tokens=2))
    assert engine.stats.images_encoded == 8


async def test_a_cancelled_caller_frees_its_slot() -> None:
    engine = HfEngine(wrap("qwen3_vl"), EngineConfig(max_num_seqs=1, max_model_len=2000))
    endless_call = asyncio.create_task(engine.generate(TEXT, endless(tokens=1900)))
    waiting = asyncio.create_task(engine.generate(TEXT, endless(1, 4)))
    never_admitted = asyncio.create_task(engine.generate(TEXT, endless(2, 4)))
    await until(lambda: engine.stats.decode_steps > 5)
    never_admitted.cancel()
    endless_call.cancel()
    assert len((await waiting).token_ids) == 4
    assert engine.stats.decode_steps < 1000
    with pytest.raises(asyncio.CancelledError):
        await endless_call
    await until(lambda: engine.in_flight == 0)
    assert engine.stats.requests == 2
    await engine.close()


async def test_a_paused_engine_makes_no_step_and_loses_no_request(engine: HfEngine) -> None:
    running = asyncio.create_task(engine.generate(TEXT, endless(tokens=200)))
    await until(lambda: engine.stats.decode_steps > 5)
    await engine.pause()
    steps = engine.stats.decode_steps
    late = asyncio.create_task(engine.generate(TEXT, endless(1, 3)))
    await asyncio.sleep(0.1)
    assert engine.stats.decode_steps == steps
    await engine.update_weights(1, {})
    await engine.resume()
    assert (await running).versions[-1] == 1
    assert (await late).versions == (1, 1, 1)


async def test_banned_ids_are_never_sampled_and_stop_ids_end(engine: HfEngine) -> None:
    calls = [
        engine.generate(
            TEXT, Sampling(40, temperature=50.0, stop_ids=(1, 2), banned_ids=tuple(range(3, 120)), seed=seed)
        )
        for seed in range(12)
    ]
    done = await asyncio.gather(*calls)
    sampled = [token for completion in done for token in completion.token_ids]
    assert not set(sampled) & set(range(3, 120))
    assert {completion.finish_reason for completion in done} == {"stop", "length"}
    for completion in done:
        assert not set(completion.token_ids[:-1]) & {1, 2}
        assert (completion.finish_reason == "stop") == (completion.token_ids[-1] in (1, 2))
    only = await engine.generate(TEXT, Sampling(5, stop_ids=(STOP,), banned_ids=ALL_BUT_STOP))
    assert (only.token_ids, only.logprobs, only.finish_reason) == ((STOP,), (0.0,), "stop")


async def test_greedy_equals_generate_of_transformers(loaded: LoadedModel) -> None:
    prompts = []
    for seed in range(4):
        talk = Conversation(seed)
        prompts.extend(talk.observe() for _ in range(3))
    engine = HfEngine(loaded, EngineConfig(max_num_seqs=5))
    sampling = Sampling(16, temperature=0, banned_ids=(IMAGE,))
    done = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts))
    await engine.close()
    for prompt, completion in zip(prompts, done, strict=True):
        assert prompt.images is not None
        ids = torch.tensor([prompt.token_ids])
        images = [prompt.images[span.sha256] for span in prompt.spans]
        loaded.model.model.rope_deltas = None
        expected = loaded.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.cat([torch.from_numpy(shown.pixel_values) for shown in images]),
            image_grid_thw=torch.tensor([shown.grid_thw for shown in images]),
            mm_token_type_ids=(ids == IMAGE).int(),
            max_new_tokens=16,
            do_sample=False,
            suppress_tokens=[IMAGE],
            eos_token_id=None,
            pad_token_id=0,
        )
        assert completion.token_ids == tuple(expected[0, ids.shape[1] :].tolist())


async def test_a_prompt_that_is_too_long_is_an_agent_error_with_its_length(engine: HfEngine) -> None:
    with pytest.raises(AgentError, match=r"1500 tokens exceeds the context length 1500"):
        await engine.generate(Prompt((1,) * 1500), endless())
    cut = await engine.generate(Prompt((1,) * 1490), endless(tokens=50))
    assert (len(cut.token_ids), cut.finish_reason) == (10, "length")


async def test_placeholders_that_disagree_with_the_images_are_rejected(engine: HfEngine) -> None:
    shown = image(1, 2, 3)
    images = {shown.sha256: shown}
    for ids, spans, held in [
        ((1, *(IMAGE,) * 6, 2), (ImageSpan(1, 6, shown.sha256),), {}),
        ((1, *(IMAGE,) * 7, 2), (ImageSpan(1, 7, shown.sha256),), images),
        ((1, *(IMAGE,) * 7, 2), (ImageSpan(1, 6, shown.sha256),), images),
        ((1, *(IMAGE,) * 6, 2), (ImageSpan(2, 6, shown.sha256),), images),
        ((1, *(IMAGE,) * 6, 2), (), images),
    ]:
        with pytest.raises(RecordError, match=r"^placeholders:"):
            await engine.generate(Prompt(ids, spans, held), endless(tokens=1))


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"banned_ids": (VOCABULARY,)}]
)
async def test_impossible_sampling_is_rejected_before_it_reaches_the_batch(
    engine: HfEngine, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        await engine.generate(TEXT, Sampling(**wrong))
    assert len((await engine.generate(TEXT, endless(tokens=2))).token_ids) == 2


async def test_a_dead_thread_fails_every_caller() -> None:
    model = wrap("qwen3_vl")
    engine = HfEngine(model, EngineConfig(max_num_seqs=2))
    calls = [asyncio.create_task(engine.generate(TEXT, endless(seed))) for seed in range(4)]
    await until(lambda: engine.stats.decode_steps > 5)

    def fail(*_: object) -> None:
        raise MemoryError("no more\nmemory")

    model.model.model.language_model.norm.register_forward_pre_hook(fail)
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, InfrastructureError)
        assert str(outcome) == "the engine stopped: MemoryError: no more; start another"
    for call in (engine.generate(TEXT, endless()), engine.update_weights(1, {}), engine.pause()):
        with pytest.raises(InfrastructureError, match="MemoryError"):
            await call
    await engine.close()


async def test_weights_that_are_not_finite_stop_the_engine_by_name() -> None:
    engine = HfEngine(wrap("qwen3_vl"))
    weights = build("qwen3_vl").state_dict()
    weights["model.language_model.norm.weight"] *= float("nan")
    await engine.update_weights(5, weights)
    with pytest.raises(InfrastructureError, match="the weights of version 5 produce logits that are not finite"):
        await engine.generate(TEXT, endless())
    await engine.close()


async def test_requests_of_unlike_lengths_are_not_padded_to_the_longest(engine: HfEngine) -> None:
    await engine.pause()
    calls = [
        asyncio.create_task(engine.generate(Prompt((1, 2) * length), endless(tokens=2))) for length in (5, 200, 6, 210)
    ]
    await asyncio.sleep(0.05)
    await engine.resume()
    await asyncio.gather(*calls)
    assert engine.stats.prefills == 2
    assert engine.stats.decode_steps == 1
    assert engine.stats.prefill_tokens == 2 * (5 + 200 + 6 + 210)


async def test_a_fork_reuses_what_it_shares_with_a_finished_request(engine: HfEngine) -> None:
    talk = Conversation(4)
    first = talk.observe()
    done = await engine.generate(first, endless(tokens=6))
    await engine.generate(first, endless(1, 6))
    assert engine.stats.reused_tokens == len(first.token_ids) - 1
    talk.token_ids += done.token_ids
    second = talk.observe()
    assert (await engine.generate(second, endless(2, 6))).served_ids == second.token_ids
    assert engine.stats.reused_tokens == len(first.token_ids) - 1 + len(first.token_ids) + 5
    await engine.update_weights(1, {})
    await engine.generate(second, endless(2, 6))
    assert engine.stats.reused_tokens == len(first.token_ids) - 1 + len(first.token_ids) + 5, (
        "other weights, other keys"
    )


async def test_a_small_model_uses_one_thread_and_leaves_other_threads_alone() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for threads, expected in ((None, 1), (2, 2)):
            model = wrap("qwen3_vl")
            seen: list[int] = []
            model.model.lm_head.register_forward_pre_hook(lambda *_, seen=seen: seen.append(torch.get_num_threads()))
            engine = HfEngine(model, threads=threads)
            await engine.generate(TEXT, endless(tokens=2))
            await engine.close()
            assert seen == [expected, expected]
            assert torch.get_num_threads() == 2
            assert await asyncio.to_thread(torch.get_num_threads) == 2
    finally:
        torch.set_num_threads(before)


async def test_closing_fails_what_is_in_flight() -> None:
    engine = HfEngine(wrap("qwen3_vl"))
    call = asyncio.create_task(engine.generate(TEXT, endless()))
    await until(lambda: engine.stats.decode_steps > 2)
    await engine.close()
    with pytest.raises(InfrastructureError, match="closed"):
        await call
    with pytest.raises(InfrastructureError, match="closed"):
        await engine.generate(TEXT, endless())
