"""Anthropic messages API: request parsing and responses. Used by `recorder.server`.

As with chat completions, a field is supported exactly or rejected by name. A user turn with tool results becomes one
tool message per result and a user message for the rest, in order. A result with `is_error` starts with the line
`error`, because chat templates have no field for it. Thinking blocks in the history are accepted and ignored, as are
`cache_control` and `metadata`. The reply's id is the call's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from deskhand.recorder.apis import validation
from deskhand.recorder.apis.chat import pieces, read_stops, tool_call_grammar
from deskhand.recorder.apis.validation import (
    ApiContext,
    invalid,
    read_field,
    read_parts,
    reject_unknown_fields,
    unsupported,
)
from deskhand.recorder.images import ImageStore
from deskhand.recorder.messages import ImagePart, Message, Part, ToolCall, message
from deskhand.recorder.recorder import ChatRequest, Reply

SUPPORTED_FIELDS = (
    *("model", "messages", "max_tokens", "system", "stream", "stop_sequences", "temperature", "top_p"),
    *("tools", "tool_choice", "metadata"),
)
IGNORED_IF_DEFAULT: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "standard_only"),
    "thinking": ({"type": "disabled"},),
}
_BLOCK = ("type", "cache_control")
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


@dataclass(frozen=True)
class MessagesBody:
    """A request read from its JSON body."""

    request: ChatRequest
    stream: bool


def read_request(body: Mapping[str, Any], context: ApiContext) -> MessagesBody:
    """Parse a body and prepare its images. Blocking; raises `InvalidRequestError` with the parameter."""
    reject_unknown_fields(body, SUPPORTED_FIELDS, IGNORED_IF_DEFAULT)
    if body.get("thinking") is not None and context.renderer.opens_thinking:
        raise unsupported("thinking", "the checkpoint always thinks; omit it")
    tools, must = _read_tools(body)
    stop_ids, stop_texts = read_stops(body.get("stop_sequences"), "stop_sequences", context)
    sampling = validation.read_sampling(
        body,
        read_field(body, "max_tokens", int, None),
        "max_tokens",
        stop_ids=stop_ids,
        stop_texts=stop_texts,
        grammar=tool_call_grammar(must, context),
    )
    request = ChatRequest(read_conversation(body, context.images), sampling, 1, tools)
    return MessagesBody(request, read_field(body, "stream", bool, False))


def _read_tool(tool: Any, where: str) -> validation.Tool:
    if not isinstance(tool, Mapping) or tool.get("type", "custom") not in (None, "custom"):
        raise unsupported(where, "tools must have a name and an input_schema")
    reject_unknown_fields(tool, ("name", "description", "input_schema", *_BLOCK), {}, f"{where}.")
    return validation.tool_definition(tool.get("name"), tool.get("description"), tool.get("input_schema"), where)


def _read_tools(body: Mapping[str, Any]) -> tuple[tuple[validation.Tool, ...], list[str]]:
    """Return (tools, names of the tools of which one must be called)."""
    tools = validation.read_tools(body, _read_tool)
    names = validation.tool_names(tools)
    choice = body.get("tool_choice")
    if choice is None:
        return tools, []
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind is not None:
        reject_unknown_fields(choice, ("type", "name"), {"disable_parallel_tool_use": (False,)}, "tool_choice.")
    if kind == "none":
        return (), []
    if kind == "auto" or (kind == "any" and tools):
        return tools, names if kind == "any" else []
    if kind == "tool" and choice.get("name") in names:
        return tools, [choice["name"]]
    raise invalid("tool_choice", 'tool_choice must have type "auto", "any", "none", or "tool" with the name of a tool')


def read_conversation(body: Mapping[str, Any], images: ImageStore) -> tuple[Message, ...]:
    """Return the messages of a body, system message first. Raises `InvalidRequestError`."""
    system, order, found = body.get("system"), validation.ToolCallOrder(), list[Message]()
    if system not in (None, []):
        found.append(message("system", read_parts(system, "system", partial(_read_part, None))))
    for index, one in enumerate(validation.as_list(body.get("messages"), "messages")):
        where = f"messages[{index}]"
        roles = ("user", "assistant")
        if not isinstance(one, Mapping) or one.get("role") not in roles or set(one) - {"role", "content"}:
            raise invalid(where, "a message must have only content and the role user or assistant")
        content = one.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list):
            raise invalid(f"{where}.content", "content must be a string or a list of blocks")
        read = _read_assistant if one["role"] == "assistant" else _read_user
        found.extend(read(content, images, f"{where}.content", order))
    return tuple(found)


def read_reply(content: Any, images: ImageStore) -> Message:
    """Return an assistant's content as a message. Raises `InvalidRequestError`."""
    blocks = validation.as_list(content, "content")
    return next(_read_assistant(blocks, images, "content", validation.ToolCallOrder()))


def _read_user(
    content: list[Any], images: ImageStore, where: str, order: validation.ToolCallOrder
) -> Iterator[Message]:
    parts = list[Part]()
    for index, block in enumerate(content):
        at = f"{where}[{index}]"
        if not isinstance(block, Mapping) or block.get("type") != "tool_result":
            parts.append(_read_part(images, block, at))
            continue
        reject_unknown_fields(block, ("tool_use_id", "content", "is_error", *_BLOCK), {}, f"{at}.")
        order.check_result(read_field(block, "tool_use_id", str, "", f"{at}."), f"{at}.tool_use_id")
        if parts:
            yield message("user", parts)
            parts = []
        result = list[Part](["error\n"] if read_field(block, "is_error", bool, False, f"{at}.") else [])
        inner = block.get("content")
        result += read_parts([] if inner is None else inner, f"{at}.content", partial(_read_part, images))
        yield message("tool", result)
    if parts or not content:
        yield message("user", parts)


def _read_assistant(
    content: list[Any], images: ImageStore, where: str, order: validation.ToolCallOrder
) -> Iterator[Message]:
    parts, calls, call_ids = list[Part](), list[ToolCall](), list[str]()
    for index, block in enumerate(content):
        at, kind = f"{where}[{index}]", block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            reject_unknown_fields(block, ("id", "name", "input", *_BLOCK), {}, f"{at}.")
            calls.append(validation.tool_call(block.get("name"), block.get("input"), at))
            call_ids.append(read_field(block, "id", str, "", f"{at}."))
        elif kind == "thinking":
            reject_unknown_fields(block, ("thinking", "signature", *_BLOCK), {}, f"{at}.")
        else:
            parts.append(_read_part(images, block, at))
    order.expect(call_ids)
    yield message("assistant", parts, tuple(calls))


def _read_part(images: ImageStore | None, block: Any, where: str) -> Part:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text" and isinstance(block.get("text"), str):
        reject_unknown_fields(block, ("text", *_BLOCK), {"citations": ([],)}, f"{where}.")
        return validation.check_encodable(block["text"], where)
    source = block.get("source") if kind == "image" and images is not None else None
    if not isinstance(source, Mapping) or images is None:
        raise unsupported(where, f"blocks of type {str(kind)[:40]!r} are not supported here")
    reject_unknown_fields(block, ("source", *_BLOCK), {}, f"{where}.")
    where = f"{where}.source"
    if source.get("type") == "url":
        return ImagePart(
            images.add_data_uri(read_field(source, "url", str, "", f"{where}."), param=f"{where}.url").sha256
        )
    if source.get("type") != "base64" or not isinstance(source.get("data"), str):
        raise invalid(where, 'an image source must be {"type": "base64", "media_type": ..., "data": ...}')
    media_type = read_field(source, "media_type", str, "", f"{where}.")
    return ImagePart(images.add_data_uri(f"data:{media_type};base64,{source['data']}", param=f"{where}.data").sha256)


def reply_body(reply: Reply, body: MessagesBody, context: ApiContext) -> dict[str, Any]:
    """Return the `message` object."""
    call, parsed = reply.calls[0], reply.parsed[0]
    reason = _STOP_REASONS[call.completion.finish_reason]
    if reason == "end_turn" and parsed.stop_text is not None:
        reason = "stop_sequence"
    elif reason == "end_turn" and parsed.calls:
        reason = "tool_use"
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": context.model,
        "content": _blocks(reply),
        "stop_reason": reason,
        "stop_sequence": parsed.stop_text,
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": len(call.completion.token_ids)},
    }


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    call, parsed = reply.calls[0], reply.parsed[0]
    blocks: list[dict[str, Any]] = []
    if parsed.thinking is not None:
        blocks.append({"type": "thinking", "thinking": parsed.thinking, "signature": ""})
    if parsed.text:
        blocks.append({"type": "text", "text": parsed.text})
    for number, one in enumerate(parsed.calls):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", call.id)
        blocks.append(
            {"type": "tool_use", "id": f"toolu_{name}_{number}", "name": one.name, "input": json.loads(one.arguments)}
        )
    return blocks


def stream_events(reply: Reply, body: MessagesBody, context: ApiContext) -> Iterator[str]:
    """Yield the reply as Anthropic's server-sent events."""
    whole = reply_body(reply, body, context)
    usage = whole["usage"]
    start = {**whole, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 0}}
    yield _event("message_start", {"message": start})
    for index, block in enumerate(whole["content"]):
        empty, deltas = _in_deltas(block)
        yield _event("content_block_start", {"index": index, "content_block": empty})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    final = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield _event("message_delta", {"delta": final, "usage": {"output_tokens": usage["output_tokens"]}})
    yield _event("message_stop", {})


def _in_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """Return (the block without its content, the deltas of its content)."""
    kind = block["type"]
    if kind == "tool_use":
        arguments = pieces(json.dumps(block["input"], ensure_ascii=False))
        return {**block, "input": {}}, ({"type": "input_json_delta", "partial_json": piece} for piece in arguments)
    return {**block, kind: ""}, ({"type": f"{kind}_delta", kind: piece} for piece in pieces(block[kind]))


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, ensure_ascii=False, separators=(',', ':'))}\n\n"
