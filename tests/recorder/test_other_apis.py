"""Anthropic messages and OpenAI responses as their official clients see them: the same episode, the same record."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import chat_templates
import openai
import pytest
from recording import ADMIN, bearer, data_uri, image_part, openai_client, png, replying
from transformers import PreTrainedTokenizerFast

from deskhand.recorder.graph import CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ToolCall
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
CALL = '<tool_call>\n{"name": "click", "arguments": {"x": 5}}\n</tool_call>'


@pytest.fixture
def tool_renderer(tokenizer: PreTrainedTokenizerFast) -> ChatRenderer:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = chat_templates.HERMES_TOOLS
    return ChatRenderer(tokenizer)


def recorder_saying(renderer: ChatRenderer, images: ImageCache, *texts: str) -> Recorder:
    return Recorder(renderer, replying(renderer, *texts), images)


@asynccontextmanager
async def clients(
    recorder: Recorder,
) -> AsyncIterator[tuple[Callable[..., anthropic.AsyncAnthropic], Callable[..., openai.AsyncOpenAI]]]:
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        yield (
            lambda key: anthropic.AsyncAnthropic(
                base_url="http://recorder", api_key=key, http_client=http, max_retries=0
            ),
            lambda key: openai_client(http, key),
        )


def block(seed: int) -> dict[str, Any]:
    data = base64.b64encode(png(seed)).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


async def by_chat(client: openai.AsyncOpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "click", "description": "c", "parameters": SCHEMA}}]
    talk: Any = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": [image_part(1), {"type": "text", "text": "go"}]},
    ]
    first = await client.chat.completions.create(model="m", messages=talk, tools=tools, max_tokens=200)
    talk.append(first.choices[0].message.model_dump(exclude_none=True))
    talk.append({"role": "tool", "tool_call_id": first.choices[0].message.tool_calls[0].id, "content": [image_part(2)]})
    await client.chat.completions.create(model="m", messages=talk, tools=tools, max_tokens=200)


async def by_messages(client: anthropic.AsyncAnthropic) -> None:
    options: Any = {"model": "m", "max_tokens": 200, "system": [{"type": "text", "text": "Be brief"}]}
    options["tools"] = [{"name": "click", "description": "c", "input_schema": SCHEMA}]
    talk: Any = [{"role": "user", "content": [block(1), {"type": "text", "text": "go"}]}]
    first = await client.messages.create(messages=talk, **options)
    assert first.stop_reason == "tool_use"
    assert [part.type for part in first.content] == ["text", "tool_use"]
    assert first.content[1].input == {"x": 5}
    talk.append({"role": "assistant", "content": first.content})
    talk.append(
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": first.content[1].id, "content": [block(2)]}],
        }
    )
    second = await client.messages.create(messages=talk, **options)
    assert (second.stop_reason, second.content[0].text) == ("end_turn", "done")


async def by_responses(client: openai.AsyncOpenAI, stored: bool = False) -> None:
    options: Any = {"model": "m", "max_output_tokens": 200, "instructions": "Be brief"}
    options["tools"] = [{"type": "function", "name": "click", "description": "c", "parameters": SCHEMA}]
    talk: Any = [
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": data_uri(1)}, {"type": "input_text", "text": "go"}],
        }
    ]
    first = await client.responses.create(input=talk, **options)
    assert [item.type for item in first.output] == ["message", "function_call"]
    assert first.output_text == "I click"
    result = {
        "type": "function_call_output",
        "call_id": first.output[1].call_id,
        "output": [{"type": "input_image", "image_url": data_uri(2)}],
    }
    if stored:
        second = await client.responses.create(input=[result], previous_response_id=first.id, **options)
    else:
        talk += [item.model_dump(exclude_none=True) for item in first.output] + [result]
        second = await client.responses.create(input=talk, **options)
    assert (second.status, second.output_text) == ("completed", "done")


async def test_the_same_episode_by_any_api_is_the_same_record(tool_renderer: ChatRenderer, images: ImageCache) -> None:
    graphs: list[CallGraph] = []
    for name in ("chat", "messages", "responses", "stored responses"):
        recorder = recorder_saying(tool_renderer, images, "I click\n" + CALL, "done")
        key = recorder.open_session("s")
        async with clients(recorder) as (anthropic_for, openai_for):
            if name == "chat":
                await by_chat(openai_for(key))
            elif name == "messages":
                await by_messages(anthropic_for(key))
            else:
                await by_responses(openai_for(key), stored=name.startswith("stored"))
        graphs.append(recorder.close_session("s"))
    first = graphs[0]
    assert len(first.sequences()) == 1
    assert len(first.sequences()[0].spans) == 2
    for other in graphs[1:]:
        assert [(one.id, one.parent, one.prompt_ids, one.spans) for one in other.calls] == [
            (one.id, one.parent, one.prompt_ids, one.spans) for one in first.calls
        ]


async def test_streams_of_both_apis_join_to_the_reply(tool_renderer: ChatRenderer, images: ImageCache) -> None:
    text = "I look at the screen for quite a while \u4e2d"
    recorder = recorder_saying(tool_renderer, images, *[f"<think>\nhm\n</think>\n\n{text}\n{CALL}"] * 2)
    ask: Any = [{"role": "user", "content": "go"}]
    async with clients(recorder) as (anthropic_for, openai_for):
        tools: Any = [{"name": "click", "input_schema": SCHEMA}]
        async with anthropic_for(recorder.open_session("a")).messages.stream(
            model="m", max_tokens=300, messages=ask, tools=tools
        ) as stream:
            message = await stream.get_final_message()
        assert [part.type for part in message.content] == ["thinking", "text", "tool_use"]
        assert (message.content[0].thinking, message.content[1].text, message.content[2].input) == (
            "hm",
            text,
            {"x": 5},
        )
        assert message.usage.output_tokens == len(recorder.close_session("a").calls[0].completion.token_ids)
        tools = [{"type": "function", "name": "click", "parameters": SCHEMA, "strict": False}]
        async with openai_for(recorder.open_session("o")).responses.stream(model="m", input=ask, tools=tools) as events:
            response = await events.get_final_response()
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        assert (response.output_text, json.loads(response.output[2].arguments)) == (text, {"x": 5})


async def test_both_apis_report_a_truncated_reply(tool_renderer: ChatRenderer, images: ImageCache) -> None:
    recorder = recorder_saying(tool_renderer, images, "long " * 20, "long " * 20)
    async with clients(recorder) as (anthropic_for, openai_for):
        ask: Any = [{"role": "user", "content": "go"}]
        cut = await anthropic_for(recorder.open_session("a")).messages.create(model="m", max_tokens=4, messages=ask)
        assert cut.stop_reason == "max_tokens"
        response = await openai_for(recorder.open_session("o")).responses.create(
            model="m", max_output_tokens=4, input="go"
        )
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"top_k": 5}, "top_k"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        ({"stop_sequences": ["x"]}, "stop_sequences"),
        ({"max_tokens": None}, "max_tokens"),
        ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "prefill"}]}, "messages"),
    ],
)
async def test_messages_reject_unsupported_parameters_by_name(
    tool_renderer: ChatRenderer, images: ImageCache, change: dict[str, Any], named: str
) -> None:
    recorder = recorder_saying(tool_renderer, images)
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}], **change}
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        answer = await http.post("/v1/messages", json=body, headers={"x-api-key": recorder.open_session("s")})
    error = answer.json()
    assert (answer.status_code, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
    assert error["error"]["message"].startswith(f"{named}: ")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"previous_response_id": "other"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "name": "f", "strict": True}]}, "tools[0].strict"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
    ],
)
async def test_responses_reject_unsupported_parameters_by_name(
    tool_renderer: ChatRenderer, images: ImageCache, change: dict[str, Any], named: str
) -> None:
    recorder = recorder_saying(tool_renderer, images)
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        headers = bearer(recorder.open_session("s"))
        answer = await http.post("/v1/responses", json={"model": "m", "input": "x", **change}, headers=headers)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == named


async def test_the_prompt_marks_a_failed_tool(tool_renderer: ChatRenderer, images: ImageCache) -> None:
    recorder = recorder_saying(tool_renderer, images, "done")
    used = [{"type": "tool_use", "id": "t1", "name": "click", "input": {"x": 1}}]
    result = [{"type": "tool_result", "tool_use_id": "t1", "content": "no such place", "is_error": True}]
    talk: Any = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": used},
        {"role": "user", "content": result},
    ]
    async with clients(recorder) as (anthropic_for, _):
        await anthropic_for(recorder.open_session("s")).messages.create(model="m", max_tokens=9, messages=talk)
    (call,) = recorder.close_session("s").calls
    text = tool_renderer.text_of(call.prompt_ids)
    assert "<tool_response>\nerror\nno such place\n</tool_response>" in text
    assert tool_renderer.tools.format.write("", [ToolCall("click", '{"x": 1}')]) in text
