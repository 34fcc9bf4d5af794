"""Parsing of recorded requests and replies of the three APIs, streamed or not.

Used by `recorder.recording_proxy` and `recorder.sft_export`; start with `read_exchange`. An `Exchange` has the
messages, the replies (one per choice) and, if the upstream returned them, token ids and log-probs. Anything that is not
understood exactly is rejected with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from deskhand.recorder.apis import anthropic_messages, chat, responses
from deskhand.recorder.images import ImageStore
from deskhand.recorder.messages import Message, message
from deskhand.recorder.request_errors import InvalidRequestError

Api = Literal["chat", "messages", "responses"]


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """Token ids of one choice from vLLM's `return_token_ids`, with expanded placeholders in the prompt."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One answered request. `tokens` has one entry per reply, or none."""

    messages: tuple[Message, ...]
    replies: tuple[Message, ...]
    finish_reasons: tuple[str, ...]
    tokens: tuple[TokenRecord, ...] = ()
    tools: str = "[]"
    """Tool definitions of the request, as JSON in the API's own format."""


def api_of(path: str) -> Api | None:
    """Return the API of a path; None for paths that are not recorded."""
    suffixes: dict[str, Api] = {"/chat/completions": "chat", "/messages": "messages", "/responses": "responses"}
    return next((api for suffix, api in suffixes.items() if path.endswith(suffix)), None)


def read_exchange(api: Api, request: Mapping[str, Any], reply: Mapping[str, Any], images: ImageStore) -> Exchange:
    """Read a request and its reply (from `assemble_stream` if streamed). Raises `InvalidRequestError`."""
    tools = json.dumps(request.get("tools") or [], ensure_ascii=False, sort_keys=True)
    return replace(_READERS[api](request, reply, images), tools=tools)


def _messages(request: Mapping[str, Any], reply: Mapping[str, Any], images: ImageStore) -> Exchange:
    replied = anthropic_messages.read_reply(reply.get("content"), images)
    return Exchange(anthropic_messages.read_conversation(request, images), (replied,), (str(reply.get("stop_reason")),))


def _responses(request: Mapping[str, Any], reply: Mapping[str, Any], images: ImageStore) -> Exchange:
    if request.get("previous_response_id") is not None:
        raise InvalidRequestError("the earlier conversation is stored upstream", param="previous_response_id")
    instructions = request.get("instructions")
    system = (message("system", instructions),) if isinstance(instructions, str) else ()
    conversation = system + responses.read_input(request.get("input"), images)
    *_, replied = responses.read_input(reply.get("output"), images)
    if replied.role != "assistant":
        raise InvalidRequestError("the response has no assistant message", param="output")
    return Exchange(conversation, (replied,), (str(reply.get("status")),))


def _chat(request: Mapping[str, Any], reply: Mapping[str, Any], images: ImageStore) -> Exchange:
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        raise InvalidRequestError("the reply has no choices", param="choices")
    replies = tuple(_read_choice(choice, f"choices[{index}].message", images) for index, choice in enumerate(choices))
    prompt_ids = reply.get("prompt_token_ids")
    tokens = tuple(_tokens(prompt_ids, choice) for choice in choices) if isinstance(prompt_ids, list) else ()
    reasons = tuple(str(choice.get("finish_reason")) for choice in choices)
    return Exchange(
        chat.read_messages(request.get("messages"), images),
        replies,
        reasons,
        tuple(one for one in tokens if one is not None),
    )


_READERS = {"chat": _chat, "messages": _messages, "responses": _responses}


def _read_choice(choice: Any, where: str, images: ImageStore) -> Message:
    reply = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(reply, Mapping):
        raise InvalidRequestError("a choice has no message", param=where)
    known = ("role", "content", "tool_calls", "reasoning_content", "reasoning")
    fields = {name: value for name, value in reply.items() if name in known and value not in (None, [])}
    return chat.read_messages([{"content": "", **fields}], images)[0]


def _tokens(prompt_ids: list[int], choice: Mapping[str, Any]) -> TokenRecord | None:
    """Return the choice's tokens; None if ids or log-probs are missing or differ in number."""
    ids, scored = choice.get("token_ids"), (choice.get("logprobs") or {}).get("content")
    if not isinstance(ids, list) or not isinstance(scored, list) or len(ids) != len(scored):
        return None
    if not all(type(token_id) is int for token_id in (*prompt_ids, *ids)):
        return None
    return TokenRecord(tuple(prompt_ids), tuple(ids), tuple(float(entry["logprob"]) for entry in scored))


def assemble_stream(api: Api, raw: bytes) -> dict[str, Any]:
    """Return the reply contained in a stream of server-sent events. Raises `ValueError` if the stream is incomplete."""
    events = list(_events(raw))
    if api == "responses":
        final_types = ("response.completed", "response.incomplete")
        found = [event["response"] for event in events if event.get("type") in final_types]
        if not found:
            raise ValueError("the stream has no completed response")
        return found[-1]
    return _assemble_message(events) if api == "messages" else _assemble_chat(events)


def _events(raw: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream; `[DONE]` as `{"type": "[DONE]"}`."""
    for block in raw.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
        data = b"\n".join(lines)
        if data == b"[DONE]":
            yield {"type": "[DONE]"}
        elif data:
            event = json.loads(data)
            if not isinstance(event, dict) or "error" in event:
                raise ValueError(f"the stream contains an error: {str(event)[:200]}")
            yield event


def _assemble_chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    if not any(event.get("type") == "[DONE]" for event in events):
        raise ValueError("the stream does not end with [DONE]")
    for event in events:
        whole |= {name: event[name] for name in ("id", "model", "prompt_token_ids") if event.get(name) is not None}
        for part in event.get("choices", ()):
            empty = {"message": {"role": "assistant", "content": "", "tool_calls": []}, "finish_reason": None}
            choice = choices.setdefault(part["index"], empty)
            _add_delta(choice["message"], part.get("delta") or {})
            choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
            choice.setdefault("token_ids", []).extend(part.get("token_ids") or ())
            scored = (part.get("logprobs") or {}).get("content") or ()
            choice.setdefault("logprobs", {"content": []})["content"].extend(scored)
    if not choices or any(choice["finish_reason"] is None for choice in choices.values()):
        raise ValueError("the stream has unfinished choices")
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _add_delta(reply: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name in ("content", "reasoning_content", "reasoning"):
        if delta.get(name):
            reply[name] = reply.get(name, "") + delta[name]
    for call in delta.get("tool_calls") or ():
        calls = reply["tool_calls"]
        if not 0 <= call["index"] <= len(calls):
            raise ValueError(f"tool call {call['index']} starts after {len(calls)} others")
        if call["index"] == len(calls):
            calls.append({"type": "function", "id": "", "function": {"name": "", "arguments": ""}})
        target = calls[call["index"]]
        target["id"] = call.get("id") or target["id"]
        for name, value in (call.get("function") or {}).items():
            target["function"][name] += value or ""


def _assemble_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for event in events:
        kind = event.get("type")
        if kind == "message_start":
            whole = dict(event["message"])
        elif kind == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        elif kind == "content_block_delta":
            index, delta = event["index"], event["delta"]
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    blocks[index][name] = blocks[index].get(name, "") + delta[name]
            inputs[index] = inputs.get(index, "") + delta.get("partial_json", "")
        elif kind == "message_delta":
            whole |= event["delta"]
    if whole.get("stop_reason") is None or not any(event.get("type") == "message_stop" for event in events):
        raise ValueError("the stream has an unfinished message")
    for index, text in inputs.items():
        if blocks[index].get("type") == "tool_use" and text:
            blocks[index]["input"] = json.loads(text)
    return {**whole, "content": [blocks[index] for index in sorted(blocks)]}
