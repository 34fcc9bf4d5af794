"""Tools are rendered like the template does, and tool calls are parsed exactly or not at all."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import chat_templates
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording import ADMIN, ScriptedEngine, openai_client, replying
from transformers import PreTrainedTokenizerFast

from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ToolCall
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.recorder.tool_formats import HermesToolFormat, XmlToolFormat

CLICK = {
    "type": "function",
    "function": {
        "name": "click",
        "description": "Click <|im_end|> at a place",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}, "button": {"type": "string"}}},
    },
}
SAY = {"type": "function", "function": {"name": "say"}}


def renderer_with(tokenizer: PreTrainedTokenizerFast, template: str) -> ChatRenderer:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer, source="the test checkpoint")


ARGUMENTS = st.dictionaries(
    st.text("abc_", min_size=1, max_size=4),
    st.integers() | st.booleans() | st.text('ab 1<>"é', max_size=6) | st.lists(st.integers(), max_size=2),
    max_size=3,
)


@given(st.text("ok .", max_size=6), st.lists(st.tuples(st.sampled_from(["click", "say"]), ARGUMENTS), max_size=3))
def test_a_format_reads_the_calls_that_it_writes(text: str, said: list[tuple[str, dict[str, Any]]]) -> None:
    calls = tuple(ToolCall(name, json.dumps(arguments)) for name, arguments in said)
    got = HermesToolFormat().read(HermesToolFormat().write(text, calls), [])
    assert got[0] == text.rstrip("\n")
    assert [call.canonical for call in got[1]] == [call.canonical for call in calls]


def test_the_coder_format_reads_values_as_the_tools_schema_says() -> None:
    parameters = "<parameter=x>\n5\n</parameter>\n<parameter=button>\n7\n</parameter>"
    text = f"ok\n\n<tool_call>\n<function=click>\n{parameters}\n</function>\n</tool_call>"
    content, (call,) = XmlToolFormat().read(text, [CLICK])
    assert (content, call.name, json.loads(call.arguments)) == ("ok", "click", {"x": 5, "button": "7"})
    assert XmlToolFormat().write("ok", [call]) == text


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "click", "arguments": {"x": 1}\n</tool_call>',
        '<tool_call>\n{"name": "click", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "click", "arguments": {"x": 1}}\n',
        '<tool_call>\n{"name": "click", "arguments": {}}\n</tool_call> and then',
        '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "click", "args": {}}\n</tool_call>',
        "<tool_call>\n</tool_call>",
    ],
)
def test_text_that_is_not_exactly_a_call_stays_text(text: str) -> None:
    assert HermesToolFormat().read(text, []) == (text, ())
    assert XmlToolFormat().read(text, []) == (text, ())


@pytest.mark.parametrize(("template", "form"), [("HERMES_TOOLS", "hermes"), ("CODER_TOOLS", "coder")])
async def test_an_agent_with_tools_has_one_sequence_and_the_prompt_of_the_template(
    tokenizer: PreTrainedTokenizerFast, images: ImageCache, template: str, form: str
) -> None:
    renderer = renderer_with(tokenizer, getattr(chat_templates, template))
    assert renderer.tools.format is not None
    assert renderer.tools.format.name == form
    calls = [ToolCall("click", '{"x": 5}'), ToolCall("say", "{}")]
    engine = replying(renderer, renderer.tools.format.write("I click", calls), "done")
    recorder = Recorder(renderer, engine, images)
    tools, talk = [CLICK, SAY], [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "go"}]
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        client = openai_client(http, recorder.open_session("s"))
        first = (await client.chat.completions.create(model="m", messages=talk, tools=tools)).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.content == "I click"
        assert [(call.function.name, json.loads(call.function.arguments)) for call in first.message.tool_calls] == [
            ("click", {"x": 5}),
            ("say", {}),
        ]
        talk.append(first.message.model_dump(exclude_none=True))
        talk.extend({"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in first.message.tool_calls)
        second = (await client.chat.completions.create(model="m", messages=talk, tools=tools)).choices[0]
        assert (second.finish_reason, second.message.content, second.message.tool_calls) == ("stop", "done", None)
        talk[3:] = reversed(talk[3:])
        with pytest.raises(openai.BadRequestError, match="order of the calls"):
            await client.chat.completions.create(model="m", messages=talk, tools=tools)
    (row,) = recorder.close_session("s").sequences()
    assert len(row.call_ids) == 2
    template_text = copy.deepcopy(tokenizer)
    template_text.chat_template = getattr(chat_templates, template)
    text = template_text.apply_chat_template(talk[:2], tools=tools, tokenize=False, add_generation_prompt=True)
    assert renderer.text_of(engine.prompts[0].token_ids) == text
    assert engine.prompts[0].token_ids.count(renderer.stop_ids[0]) == 2, "a tool's description closes no turn"


async def test_a_call_that_was_not_recorded_here_is_written_as_the_template_does(
    tokenizer: PreTrainedTokenizerFast, images: ImageCache
) -> None:
    renderer = renderer_with(tokenizer, chat_templates.HERMES_TOOLS)
    engine = replying(renderer, "done")
    recorder = Recorder(renderer, engine, images)
    called = [{"id": "c1", "type": "function", "function": {"name": "click", "arguments": '{"x":5}'}}]
    talk = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": called}]
    talk.append({"role": "tool", "tool_call_id": "c1", "content": "ok"})
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        client = openai_client(http, recorder.open_session("s"))
        await client.chat.completions.create(model="m", messages=talk, tools=[CLICK])
    assert '<tool_call>\n{"name": "click", "arguments": {"x": 5}}\n</tool_call>' in renderer.text_of(
        engine.prompts[0].token_ids
    )


async def test_tools_are_rejected_if_the_template_does_not_support_them(
    tokenizer: PreTrainedTokenizerFast, images: ImageCache
) -> None:
    for template in (chat_templates.QWEN2_5_VL, chat_templates.UNKNOWN_CALLS):
        renderer = renderer_with(tokenizer, template)
        recorder = Recorder(renderer, ScriptedEngine(), images)
        async with in_process_client(create_app(recorder, ADMIN)) as http:
            client = openai_client(http, recorder.open_session("s"))
            request: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
            with pytest.raises(openai.BadRequestError, match="unknown format") as caught:
                await client.chat.completions.create(**request, tools=[CLICK])
            assert caught.value.param == "tools"
            await client.chat.completions.create(**request, tools=[CLICK], tool_choice="none")


async def test_a_call_that_must_be_made_is_a_grammar_where_the_engine_has_grammars(
    tokenizer: PreTrainedTokenizerFast, images: ImageCache
) -> None:
    renderer = renderer_with(tokenizer, chat_templates.HERMES_TOOLS)
    call = HermesToolFormat().write("", [ToolCall("say", '{"a": 1}')])
    engine = replying(renderer, call, call)
    recorder = Recorder(renderer, engine, images)
    request: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}], "tools": [CLICK, SAY]}
    named: Any = {"type": "function", "function": {"name": "say"}}
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        client = openai_client(http, recorder.open_session("s"))
        with pytest.raises(openai.BadRequestError, match="has no regex feature"):
            await client.chat.completions.create(**request, tool_choice="required")
        engine.features = frozenset(["regex"])
        for choice in ("required", named):
            reply = await client.chat.completions.create(**request, tool_choice=choice)
            assert reply.choices[0].message.tool_calls[0].function.name == "say"
    either, one = (sampling.grammar.text for sampling in engine.samplings)
    other = HermesToolFormat().write("", [ToolCall("click", '{"x": 1}')])
    assert [bool(re.fullmatch(either, text)) for text in (call, other, "no")] == [True, True, False]
    assert [bool(re.fullmatch(one, text)) for text in (call, other)] == [True, False]
