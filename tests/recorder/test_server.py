"""The endpoint as the official `openai` client sees it, in process and over a loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from recording import ADMIN, ScriptedEngine, bearer, image_part, openai_client, text_part
from serving import on_a_port
from starlette.applications import Starlette

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client


@pytest.fixture
def app(recorder: Recorder) -> Starlette:
    return create_app(recorder, ADMIN, default_max_tokens=9)


ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "Click"}]}
REMOTE = {"type": "image_url", "image_url": {"url": "http://example.org/a.png"}}


@asynccontextmanager
async def in_process(app: Starlette) -> AsyncIterator[Callable[[str], openai.AsyncOpenAI]]:
    async with in_process_client(app) as http:
        yield lambda key: openai_client(http, key)


@asynccontextmanager
async def over_a_port(app: Starlette) -> AsyncIterator[Callable[[str], openai.AsyncOpenAI]]:
    async with on_a_port(app) as address:
        yield lambda key: openai.AsyncOpenAI(base_url=address, api_key=key, max_retries=0)


@pytest.mark.parametrize("transport", [in_process, over_a_port])
async def test_an_episode_of_an_ordinary_agent_is_one_sequence(
    app: Starlette, recorder: Recorder, transport: Any
) -> None:
    key = recorder.open_session("episode")
    async with transport(app) as client_for:
        client, messages = client_for(key), []
        assert [model.id async for model in client.models.list()] == ["deskhand"]
        for turn in range(6):
            messages.append({"role": "user", "content": [image_part(turn), text_part(f"Click {turn}")]})
            reply = await client.chat.completions.create(model="any", messages=messages, max_tokens=12)
            messages.append(reply.choices[0].message.model_dump(exclude_none=True))
            assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    graph = recorder.close_session("episode")
    (row,) = graph.sequences()
    assert len(row.spans) == 6
    assert sum(row.loss_mask) == graph.num_sampled_tokens == sum(len(call.completion.token_ids) for call in graph.calls)
    assert graph.calls[-1].id == reply.id
    assert not recorder.violations


async def test_streaming_logprobs_and_usage_are_what_was_recorded(app: Starlette, recorder: Recorder) -> None:
    async with in_process(app) as client_for:
        client = client_for(recorder.open_session("s"))
        stream = await client.chat.completions.create(
            **ASK,
            n=3,
            seed=5,
            logprobs=True,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    calls = recorder.close_session("s").calls
    assert [call.id for call in calls] == [f"{chunks[0].id}.{index}" for index in range(3)]
    texts, logprobs, reasons = {}, {}, {}
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        if choice.logprobs:
            logprobs[choice.index] = tuple(entry.logprob for entry in choice.logprobs.content)
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    for index, call in enumerate(calls):
        assert (texts[index], logprobs[index], reasons[index]) == (
            call.text,
            call.completion.logprobs,
            call.completion.finish_reason,
        )
    assert chunks[-1].usage.completion_tokens == sum(len(call.completion.token_ids) for call in calls)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"temperature": 3.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"stop": ["\n"]}, "stop"),
        ({"top_logprobs": 5, "logprobs": True}, "top_logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"extra_body": {"structured_outputs": {"regex": "["}}}, "structured_outputs.regex"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "json": {}}}}, "structured_outputs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stop": 5}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"extra_body": {"top_k": 5}}, "top_k"),
        ({"extra_body": {"seed": True}}, "seed"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": "n"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [REMOTE]}]}, "messages[0].content[0].image_url.url"),
    ],
)
async def test_unsupported_parameters_are_rejected_by_name(
    app: Starlette, recorder: Recorder, engine: ScriptedEngine, parameters: dict[str, Any], named: str
) -> None:
    async with in_process(app) as client_for:
        request = {**ASK, **parameters}
        with pytest.raises(openai.BadRequestError) as caught:
            await client_for(recorder.open_session("s")).chat.completions.create(**request)
    assert caught.value.param == named
    assert not engine.prompts


async def test_parameters_without_effect_are_accepted(
    app: Starlette, recorder: Recorder, engine: ScriptedEngine
) -> None:
    async with in_process(app) as client_for:
        await client_for(recorder.open_session("s")).chat.completions.create(
            **ASK,
            temperature=0.5,
            top_p=0.9,
            seed=7,
            stop="<|im_end|>",
            max_completion_tokens=3,
            presence_penalty=0,
            response_format={"type": "text"},
            tools=[],
        )
    (sampling,) = engine.samplings
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens) == (0.5, 0.9, 7, 3)
    assert sampling.stop_ids == tuple(sorted(recorder.renderer.stop_ids))
    assert set(recorder.renderer.banned_ids) <= set(sampling.banned_ids)


async def test_calls_of_outside_agents_from_a_restricted_distribution_are_not_trained(
    app: Starlette, recorder: Recorder
) -> None:
    async with in_process(app) as client_for:
        client = client_for(recorder.open_session("s"))
        for parameters in ({}, {"temperature": 0}, {"top_p": 0.9}, {"temperature": 0.7}):
            await client.chat.completions.create(**ASK, **parameters)
    graph = recorder.close_session("s")
    restrictions = {"s.2": "temperature 0", "s.3": "top_p"}
    assert {name: graph.untrained.get(name) for name in restrictions} == restrictions
    assert {name for row in graph.sequences() for name in row.call_ids}.isdisjoint(restrictions)


async def test_only_a_session_key_samples_and_only_the_admin_key_opens_sessions(
    app: Starlette, recorder: Recorder
) -> None:
    async with in_process_client(app) as http, in_process(app) as client_for:
        for key in ("", ADMIN, "sk-wrong"):
            with pytest.raises(openai.AuthenticationError):
                await client_for(key or "x").chat.completions.create(**ASK)
        for key, status in (("", 401), ("wrong", 401), (recorder.open_session("other"), 403)):
            answer = await http.post("/sessions", json={}, headers=bearer(key) if key else {})
            assert answer.status_code == status
        admin = bearer(ADMIN)
        opened = (await http.post("/sessions", json={"session_id": "mine"}, headers=admin)).json()
        assert opened["session_id"] == "mine"
        assert (await http.post("/sessions", json={"session_id": "mine"}, headers=admin)).status_code == 409
        reply = await client_for(opened["api_key"]).chat.completions.create(**ASK)
        closed = (await http.post("/sessions/mine/end", headers=admin)).json()
        assert CallGraph.from_dict(closed["graph"]).calls[0].text == reply.choices[0].message.content
        assert (await http.post("/sessions/mine/end", headers=admin)).status_code == 404
        with pytest.raises(openai.AuthenticationError):
            await client_for(opened["api_key"]).chat.completions.create(**ASK)
        assert (await http.get("/health")).json()["status"] == "ok"


async def test_a_broken_engine_is_a_503_that_is_not_retried(
    app: Starlette, recorder: Recorder, engine: ScriptedEngine
) -> None:
    def down(prompt: Any, sampling: Any) -> list[int]:
        raise InfrastructureError("the engine is down; start it again")

    engine.script = down
    async with in_process_client(app) as http:
        client = openai.AsyncOpenAI(
            base_url="http://recorder", api_key=recorder.open_session("s"), http_client=http, max_retries=3
        )
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(**ASK)
    assert caught.value.status_code == 503
    assert len(engine.prompts) == 1
    assert recorder.close_session("s").calls == []


async def test_a_conversation_longer_than_the_context_has_its_own_error_code(
    renderer: ChatRenderer, engine: ScriptedEngine, images: ImageCache
) -> None:
    recorder = Recorder(renderer, engine, images, context_tokens=60)
    async with in_process(create_app(recorder, ADMIN)) as client_for:
        client = client_for(recorder.open_session("s"))
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "long " * 40}], max_tokens=20
            )
        assert caught.value.code == "context_length_exceeded"
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "ok"}], max_tokens=20)


async def test_a_body_that_is_not_json_or_too_large_is_rejected(recorder: Recorder) -> None:
    key = bearer(recorder.open_session("s"))
    async with in_process_client(create_app(recorder, ADMIN, max_body_bytes=100)) as http:
        assert (await http.post("/v1/chat/completions", content=b"{", headers=key)).status_code == 400
        assert (await http.post("/v1/chat/completions", content=b"[1]", headers=key)).status_code == 400
        assert (await http.post("/v1/chat/completions", content=b" " * 101, headers=key)).status_code == 413


def test_a_short_admin_key_is_a_config_error(recorder: Recorder) -> None:
    with pytest.raises(ConfigError, match="16 characters"):
        create_app(recorder, "short")
