"""Constrained replies match their grammar with the model's own log-probs; stop texts end a reply where they occur.

The model has random weights, so unconstrained replies are neither JSON nor anything else.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import torch
from training_fixture import checkpoint

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf import HfEngine
from deskhand.engines.hf.grammar import GrammarState
from deskhand.models.load import LoadedModel, load
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.renderer import ChatRenderer
from deskhand.trainer.policy import Policy
from deskhand.types import Completion, Grammar, Prompt, Sampling, UnsupportedGrammar

POINT = {"type": "integer", "minimum": 0, "maximum": 999}
CLICK = {
    "type": "object",
    "properties": {"op": {"const": "click"}, "x": POINT, "y": POINT},
    "required": ["op", "x", "y"],
    "additionalProperties": False,
}
PATTERNS = (r"(click|done) [0-9]{1,3}", r"^a{1,6}b?$", r"\{\"op\":\"(click|done)\"\}", "é?[日本]{2}")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    torch.set_num_threads(1)
    return load(str(checkpoint(tmp_path_factory.mktemp("checkpoint"))))


@pytest.fixture(scope="module")
def renderer(loaded: LoadedModel) -> ChatRenderer:
    return ChatRenderer(loaded.tokenizer)


@pytest.fixture
async def engine(loaded: LoadedModel) -> AsyncIterator[HfEngine]:
    engine = HfEngine(loaded, EngineConfig(max_num_seqs=8, max_model_len=600))
    yield engine
    await engine.close()


def prompt(renderer: ChatRenderer, seed: int = 0) -> Prompt:
    return Prompt(tuple(renderer.encode_text(f"Click the blue square {seed}")))


def sampling(renderer: ChatRenderer, grammar: Grammar | None = None, seed: int = 0, **settings: Any) -> Sampling:
    chosen = {"max_tokens": 330, "stop_ids": renderer.stop_ids, "banned_ids": renderer.banned_ids, **settings}
    return Sampling(seed=seed, grammar=grammar, **chosen)


async def replies(engine: HfEngine, renderer: ChatRenderer, grammar: Grammar, **settings: Any) -> list[Completion]:
    calls = (
        engine.generate(prompt(renderer, seed), sampling(renderer, grammar, seed, **settings)) for seed in range(8)
    )
    return await asyncio.gather(*calls)


def matches(grammar: Grammar, text: str) -> bool:
    if grammar.kind == "regex":
        return re.fullmatch(grammar.text, text) is not None
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return set(found) == {"op", "x", "y"} and found["op"] == "click" and all(0 <= found[key] <= 999 for key in "xy")


GRAMMARS = [Grammar("json_schema", json.dumps(CLICK)), *(Grammar("regex", pattern) for pattern in PATTERNS)]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.text[:20])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_every_reply_that_ends_matches(
    engine: HfEngine, renderer: ChatRenderer, grammar: Grammar, temperature: float
) -> None:
    done = await replies(engine, renderer, grammar, temperature=temperature)
    ended = [renderer.text_of(one.token_ids) for one in done if one.finish_reason == "stop"]
    assert ended, "some reply comes to its end"
    assert all(matches(grammar, text) for text in ended), ended


async def test_the_log_probs_are_the_models_own(engine: HfEngine, renderer: ChatRenderer, loaded: LoadedModel) -> None:
    """What is recorded is what the model thinks of the ids, not what the grammar left of it; RL does not train it."""
    done = await replies(engine, renderer, GRAMMARS[0], temperature=0.7)
    policy = Policy(load(loaded.source).model, banned_ids=renderer.banned_ids)
    for seed, one in enumerate(done):
        graph = CallGraph()
        graph.add(Call("0", None, prompt(renderer, seed).token_ids, (), one, 0.7))
        found = policy.logprobs(graph.sequences(), {})[0]
        assert np.abs(found - np.array(one.logprobs)).max() < 1e-3
    assert min(min(one.logprobs) for one in done) < -3, "the model alone would hardly have said it"


async def test_a_grammar_does_not_affect_other_requests(engine: HfEngine, renderer: ChatRenderer) -> None:
    plain = sampling(renderer, seed=5)
    alone = await engine.generate(prompt(renderer), plain)
    beside, *_ = await asyncio.gather(engine.generate(prompt(renderer), plain), replies(engine, renderer, GRAMMARS[0]))
    assert beside.token_ids == alone.token_ids
    assert engine.stats.largest_batch > 1


async def test_without_the_mask_nothing_matches(
    engine: HfEngine, renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GrammarState, "allowed", lambda self: np.ones(self._vocabulary, dtype=bool))
    done = await replies(engine, renderer, GRAMMARS[0])
    assert not any(matches(GRAMMARS[0], renderer.text_of(one.token_ids)) for one in done)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("regex", "(a"), "unclosed group"),
        (Grammar("json_schema", '{"type": "nonsense"}'), "Invalid type"),
        (Grammar("json_schema", '{"not": {"type": "string"}}'), "Unimplemented"),
        (Grammar("json_schema", "{"), "not JSON"),
    ],
)
async def test_an_unsupported_grammar_is_rejected(
    engine: HfEngine, renderer: ChatRenderer, grammar: Grammar, reason: str
) -> None:
    with pytest.raises(UnsupportedGrammar, match=reason):
        await engine.generate(prompt(renderer), sampling(renderer, grammar))
    with pytest.raises(UnsupportedGrammar, match="stop ids"):
        await engine.generate(prompt(renderer), sampling(renderer, GRAMMARS[0], stop_ids=()))


async def test_a_dead_end_fails_one_request_and_no_other(engine: HfEngine, renderer: ChatRenderer) -> None:
    letters = tuple(renderer.encode_text("z"))
    stuck = sampling(renderer, Grammar("regex", "z+"), banned_ids=(*renderer.banned_ids, *letters))
    other = engine.generate(prompt(renderer), sampling(renderer, GRAMMARS[0]))
    first, second = await asyncio.gather(engine.generate(prompt(renderer), stuck), other, return_exceptions=True)
    assert isinstance(first, UnsupportedGrammar)
    assert isinstance(second, Completion)


async def test_a_stop_text_ends_the_reply_with_the_token_that_completes_it(
    engine: HfEngine, renderer: ChatRenderer
) -> None:
    tried = 0
    for seed in range(6):
        whole = await engine.generate(prompt(renderer, seed), sampling(renderer, seed=seed, max_tokens=60))
        found = re.search(r"[ -~]{2}", renderer.text_of(whole.token_ids)[3:])
        if found is None:
            continue
        tried += 1
        stop = found[0]
        ended = await engine.generate(prompt(renderer, seed), sampling(renderer, seed=seed, stop_texts=("never", stop)))
        assert ended.finish_reason == "stop"
        assert ended.token_ids == whole.token_ids[: len(ended.token_ids)]
        assert stop in renderer.text_of(ended.token_ids)
        assert stop not in renderer.text_of(ended.token_ids[:-1])
    assert tried > 2


async def test_the_most_likely_ids_are_listed_best_first(engine: HfEngine, renderer: ChatRenderer) -> None:
    done = await engine.generate(prompt(renderer), sampling(renderer, top_logprobs=4, max_tokens=12))
    assert [len(listed) for listed in done.top_logprobs] == [4] * len(done.token_ids)
    for token, logprob, listed in zip(done.token_ids, done.logprobs, done.top_logprobs, strict=True):
        values = [value for _, value in listed]
        assert values == sorted(values, reverse=True)
        assert dict(listed).get(token, logprob) == logprob
        assert logprob <= values[0]
    greedy = await engine.generate(prompt(renderer), sampling(renderer, top_logprobs=1, temperature=0.0, max_tokens=12))
    assert [listed[0][0] for listed in greedy.top_logprobs] == list(greedy.token_ids)
