"""Engine log-probs equal those of a plain forward pass, whatever else is being served.

The reference is transformers' own forward pass, one row at a time. The trainer, which sees the merged calls of an
episode, is held to the same tolerance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from random_models import IMAGE, STOP, Conversation, wrap

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf import HfEngine, decode_batch, decode_request, kv_cache
from deskhand.models.load import LoadedModel
from deskhand.recorder.graph import Call, CallGraph
from deskhand.trainer.policy import Policy
from deskhand.types import Completion, Prompt, Sampling

BANNED = (IMAGE, 151, 152, 154)
Calls = list[tuple[Prompt, Sampling, Completion]]


async def converse(engine: HfEngine, seed: int, turns: int, temperature: float) -> Calls:
    """Turns of one episode. The window drops the first two images once, so that one call forks from the rest."""
    talk = Conversation(seed)
    calls: Calls = []
    for turn in range(turns):
        if turn == 4:
            cut = talk.spans[2].start - 1
            talk.token_ids = talk.token_ids[cut:]
            talk.spans = tuple(type(span)(span.start - cut, span.count, span.sha256) for span in talk.spans[2:])
        prompt = talk.observe()
        limit = talk.random.randint(2, 14)
        sampling = Sampling(limit, temperature, stop_ids=(STOP,), banned_ids=BANNED, seed=seed * 100 + turn)
        completion = await engine.generate(prompt, sampling)
        talk.token_ids += completion.token_ids
        calls.append((prompt, sampling, completion))
    return calls


async def serve(loaded: LoadedModel, *, temperature: float = 1.0, **options: Any) -> tuple[list[Calls], HfEngine]:
    engine = HfEngine(loaded, EngineConfig(max_num_seqs=5, **options))

    async def late(seed: int) -> Calls:
        await asyncio.sleep(0.003 * seed)
        return await converse(engine, seed, 6, temperature)

    try:
        episodes = await asyncio.gather(*(late(seed) for seed in range(7)))
    finally:
        await engine.close()
    return episodes, engine


def plain_logprobs(loaded: LoadedModel, prompt: Prompt, sampling: Sampling, completion: Completion) -> np.ndarray:
    """By transformers alone: no padding, no cache, no code of ours."""
    ids = torch.tensor([prompt.token_ids + completion.token_ids])
    images = [prompt.images[span.sha256] for span in prompt.spans] if prompt.images else []
    with torch.no_grad():
        logits = loaded.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.cat([torch.from_numpy(image.pixel_values) for image in images]),
            image_grid_thw=torch.tensor([image.grid_thw for image in images]),
            mm_token_type_ids=(ids == IMAGE).int(),
        ).logits[0, len(prompt.token_ids) - 1 : -1]
    logits[:, list(BANNED)] = float("-inf")
    logprobs = torch.log_softmax(logits / (sampling.temperature or 1.0), -1)
    return logprobs[torch.arange(len(completion.token_ids)), list(completion.token_ids)].numpy()


def plain_differences(loaded: LoadedModel, episodes: list[Calls]) -> np.ndarray:
    return np.concatenate(
        [plain_logprobs(loaded, *call) - np.array(call[2].logprobs) for calls in episodes for call in calls],
        dtype=np.float64,
    )


def trainer_differences(loaded: LoadedModel, episodes: list[Calls]) -> np.ndarray:
    """As the trainer scores them: each episode's calls merged into two sequences, the second after the window moved."""
    policy = Policy(loaded.model, banned_ids=BANNED)
    differences = []
    for calls in episodes:
        graph, images = CallGraph(), {}
        for index, (prompt, sampling, completion) in enumerate(calls):
            parent = graph.parent_of(prompt.token_ids, prompt.spans, sampling.temperature)
            graph.add(Call(str(index), parent, prompt.token_ids, prompt.spans, completion, sampling.temperature))
            images.update(prompt.images or {})
        rows = graph.sequences()
        assert [len(row.call_ids) for row in rows] == [4, 2]
        for row, found in zip(rows, policy.logprobs(rows, images), strict=True):
            differences.append(found - np.array(row.logprobs)[list(row.loss_mask)])
    return np.concatenate(differences, dtype=np.float64)


Reference = Callable[[LoadedModel, list[Calls]], np.ndarray]


def mismatch(differences: np.ndarray) -> tuple[float, float]:
    """Largest |difference| in nats and the mean of the k3 estimate of the KL divergence, e^d - 1 - d."""
    return float(np.abs(differences).max()), float((np.expm1(differences) - differences).mean())


@pytest.mark.parametrize("reference", [plain_differences, trainer_differences])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_log_probs_equal_a_plain_forward_pass(
    loaded: LoadedModel, temperature: float, reference: Reference
) -> None:
    episodes, engine = await serve(loaded, temperature=temperature)
    assert engine.stats.largest_batch == 5
    assert engine.stats.reused_tokens > 500
    assert all(done.served_ids == prompt.token_ids for calls in episodes for prompt, _, done in calls)
    differences = reference(loaded, episodes)
    largest, divergence = mismatch(differences)
    what = f"{loaded.family}, temperature {temperature}, {reference.__name__}"
    print(f"{what}: max {largest:.2e} nat, mean KL estimate {divergence:.2e} over {len(differences)} tokens")
    assert largest < 1e-3
    assert divergence < 1e-6


async def test_log_probs_equal_without_reuse_of_prefixes(loaded: LoadedModel) -> None:
    episodes, engine = await serve(loaded, prefix_cache_tokens=0)
    assert engine.stats.reused_tokens == 0
    assert mismatch(plain_differences(loaded, episodes))[0] < 1e-3


def _delta_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = decode_batch.positions

    def wrong(*arguments: Any) -> Any:
        places, following = real(*arguments)
        return places, following + 1

    monkeypatch.setattr(decode_batch, "positions", wrong)


def _joined_rows_see_stale_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kv_cache.KVCacheView.__init__

    def wrong(self: kv_cache.KVCacheView, *arguments: Any) -> None:
        real(self, *arguments)
        if self.mask is not None:
            self.mask = torch.ones_like(self.mask)

    monkeypatch.setattr(kv_cache.KVCacheView, "__init__", wrong)


def _images_told_apart_by_ids_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = decode_request.key_of
    monkeypatch.setattr(decode_request, "key_of", lambda ids, spans: real(ids, ()))


def _deepstack_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    real = decode_batch.encode_images
    monkeypatch.setattr(decode_batch, "encode_images", lambda *arguments: real(*arguments)[:1])


def _freed_slot_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: kv_cache.KVCache, slot: int) -> int:
        self.lengths[slot] = self.lengths[-1]
        self.lengths.pop()
        return len(self.lengths)

    monkeypatch.setattr(kv_cache.KVCache, "free", wrong)


def _states_of_a_freed_slot_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kv_cache.KVCache.free

    def wrong(self: kv_cache.KVCache, slot: int) -> None:
        kept, self.states = self.states, ()
        real(self, slot)
        self.states = kept

    monkeypatch.setattr(kv_cache.KVCache, "free", wrong)


def _a_new_slot_has_states_of_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kv_cache.KVCache.open

    def wrong(self: kv_cache.KVCache, prefix: kv_cache.SlotContent | None, tokens: int) -> None:
        before = [state.clone() for state in self.states]
        real(self, prefix, tokens)
        if prefix is None:
            for state, old in zip(self.states, before, strict=True):
                state[:, : old.shape[1]] = old

    monkeypatch.setattr(kv_cache.KVCache, "open", wrong)


def _padding_changes_the_states(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kv_cache.KVCacheView.__init__

    def wrong(self: kv_cache.KVCacheView, *arguments: Any) -> None:
        real(self, *arguments)
        self.states.widths = [max(self.states.widths)] * len(self.states.widths)

    monkeypatch.setattr(kv_cache.KVCacheView, "__init__", wrong)


BUGS = {
    _delta_off_by_one: "qwen3_vl",
    _joined_rows_see_stale_keys: "qwen3_vl",
    _images_told_apart_by_ids_only: "qwen3_vl",
    _deepstack_forgotten: "qwen3_vl",
    _freed_slot_not_moved: "qwen3_vl",
    _states_of_a_freed_slot_not_moved: "qwen3_5",
    _a_new_slot_has_states_of_another_row: "qwen3_5",
    _padding_changes_the_states: "qwen3_5",
}


@pytest.mark.parametrize("bug", BUGS)
async def test_the_comparison_notices_a_bug(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = wrap(BUGS[bug])
    bug(monkeypatch)
    episodes, _ = await serve(loaded)
    assert mismatch(plain_differences(loaded, episodes))[0] > 1e-2
