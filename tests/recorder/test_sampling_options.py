"""Optional engine features: rejected by name if missing, and checked if supported."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import openai
import pytest
from recording import ADMIN, ScriptedEngine, openai_client, replying

from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.types import Completion

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}]}


def client_of(recorder: Recorder, http: Any) -> openai.AsyncOpenAI:
    key = recorder.open_session(f"s{len(list(recorder.sessions))}")
    return openai_client(http, key)


def app_of(recorder: Recorder) -> Any:
    return in_process_client(create_app(recorder, ADMIN))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_text_ends_the_reply_and_is_not_part_of_it(
    renderer: ChatRenderer, images: ImageCache, stream: bool
) -> None:
    engine = ScriptedEngine(
        lambda prompt, sampling: renderer.encode_text("ab1 STOP"),
        lambda done: replace(done, finish_reason="stop"),
        features=frozenset(["stop_texts"]),
    )
    recorder = Recorder(renderer, engine, images)
    async with app_of(recorder) as http:
        client = client_of(recorder, http)
        reply = await client.chat.completions.create(**ASK, stop=["STOP", "never"], stream=stream)
        if stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in reply])
        else:
            text = reply.choices[0].message.content
            assert reply.choices[0].finish_reason == "stop"
    assert text == "ab1 "
    (call,) = recorder.close_session("s0").calls
    assert call.text == "ab1 STOP", "what was sampled is what is recorded"


@pytest.mark.parametrize(
    ("tamper", "cause"),
    [
        (lambda done: done, "finish_reason"),
        (
            lambda done: replace(
                done,
                finish_reason="stop",
                token_ids=(*done.token_ids, 65),
                logprobs=(*done.logprobs, -1.0),
                versions=(*done.versions, 3),
            ),
            "stop_text",
        ),
    ],
)
async def test_an_engine_that_goes_on_after_a_stop_text_is_caught(
    renderer: ChatRenderer, images: ImageCache, tamper: Any, cause: str
) -> None:
    engine = ScriptedEngine(
        lambda prompt, sampling: renderer.encode_text("a STOP"), tamper, features=frozenset(["stop_texts"])
    )
    recorder = Recorder(renderer, engine, images)
    async with app_of(recorder) as http:
        with pytest.raises(openai.InternalServerError):
            await client_of(recorder, http).chat.completions.create(**ASK, stop="STOP")
    assert recorder.violations == {cause: 1}


async def test_alternatives_of_a_token_are_those_that_the_engine_gave(
    renderer: ChatRenderer, images: ImageCache
) -> None:
    def listed(done: Completion) -> Completion:
        tops = tuple(
            ((token, logprob), (7, logprob - 1.0)) for token, logprob in zip(done.token_ids, done.logprobs, strict=True)
        )
        return replace(done, top_logprobs=tops)

    engine = ScriptedEngine(tamper=listed, features=frozenset(["top_logprobs"]))
    recorder = Recorder(renderer, engine, images)
    async with app_of(recorder) as http:
        client = client_of(recorder, http)
        reply = await client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2)
        for entry in reply.choices[0].logprobs.content:
            assert [one.logprob for one in entry.top_logprobs] == [entry.logprob, entry.logprob - 1.0]
            assert entry.top_logprobs[0].token == entry.token
        engine.tamper = lambda done: replace(listed(done), logprobs=tuple(value - 0.5 for value in done.logprobs))
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2)
        engine.tamper = None
        with pytest.raises(openai.InternalServerError):
            await client_of(recorder, http).chat.completions.create(**ASK, logprobs=True, top_logprobs=2)
    assert recorder.violations == {"top_logprobs": 2}


async def test_constrained_replies_reach_the_engine_as_a_grammar_and_a_reply_that_is_no_json_is_caught(
    renderer: ChatRenderer, images: ImageCache
) -> None:
    texts, features = ('{"x": 1}', "no json", '{"x"', "yes"), frozenset(["json_schema", "regex"])
    engine = replying(renderer, *texts, features=features)
    recorder = Recorder(renderer, engine, images)
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "point", "schema": schema, "strict": True}}
    async with app_of(recorder) as http:
        client = client_of(recorder, http)
        reply = await client.chat.completions.create(**ASK, response_format=form)
        assert json.loads(reply.choices[0].message.content) == {"x": 1}
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**ASK, response_format=form)
        client = client_of(recorder, http)
        cut = await client.chat.completions.create(**ASK, response_format=form, max_tokens=2)
        assert cut.choices[0].finish_reason == "length", "a reply cut at its limit is no violation"
        await client.chat.completions.create(**ASK, extra_body={"structured_outputs": {"choice": ["yes", "n|o"]}})
    kinds = [(sampling.grammar.kind, sampling.grammar.text) for sampling in engine.samplings]
    assert kinds == [("json_schema", json.dumps(schema))] * 3 + [("regex", r"yes|n\|o")]
    assert recorder.violations == {"grammar": 1}
