"""OpenAI responses API: requests, responses and streams. Used by `recorder.server`.

As with chat completions, a field is supported exactly or rejected by name. An assistant message and the function calls
after it become one message. Reasoning items in the history are accepted and ignored. `previous_response_id` is a call
of the same session; its conversation, without instructions, precedes the input. Reasoning tokens are not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from deskhand.recorder.apis import validation
from deskhand.recorder.apis.chat import pieces, read_image, tool_call_grammar, usage
from deskhand.recorder.apis.validation import (
    ApiContext,
    invalid,
    read_field,
    read_parts,
    reject_unknown_fields,
    unsupported,
)
from deskhand.recorder.images import ImageStore
from deskhand.recorder.messages import Message, Part, Role, ToolCall, message
from deskhand.recorder.recorder import ChatRequest, Reply
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Grammar

SUPPORTED_FIELDS = (
    *("model", "input", "instructions", "previous_response_id", "store", "stream", "metadata", "user"),
    *("max_output_tokens", "temperature", "top_p", "tools", "tool_choice", "text"),
)
IGNORED_IF_DEFAULT: dict[str, tuple[Any, ...]] = {
    "parallel_tool_calls": (True,),
    "truncation": ("disabled",),
    "background": (False,),
    "include": ([],),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
}
_ITEM = ("type", "id", "status")
_ROLES: dict[str, Role] = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}


@dataclass(frozen=True)
class ResponsesBody:
    """A request read from its JSON body. `conversation` excludes the instructions."""

    request: ChatRequest
    conversation: tuple[Message, ...]
    stream: bool
    store: bool
    echo: Mapping[str, Any]
    """Fields repeated in the response."""


def read_request(body: Mapping[str, Any], context: ApiContext) -> ResponsesBody:
    """Parse a body and prepare its images. Blocking; raises `InvalidRequestError` with the parameter."""
    reject_unknown_fields(body, SUPPORTED_FIELDS, IGNORED_IF_DEFAULT)
    tools, must = validation.apply_tool_choice(
        body.get("tool_choice"), validation.read_tools(body, _read_tool), lambda choice: choice.get("name")
    )
    grammar = _read_grammar(body, context.features)
    if grammar is not None and (tools or context.renderer.opens_thinking):
        raise unsupported("text.format", "a constrained reply can neither call tools nor think")
    limit = read_field(body, "max_output_tokens", int, context.default_max_tokens)
    grammar = grammar or tool_call_grammar(must, context)
    sampling = validation.read_sampling(body, limit, "max_output_tokens", grammar=grammar)
    name = read_field(body, "previous_response_id", str, None)
    before = () if name is None else context.conversations.get(name)
    if before is None:
        raise InvalidRequestError(
            "the session has no stored response with that id", param="previous_response_id", status=404
        )
    call_ids = [call_id_of(str(name), number) for number in range(len(before[-1].calls))] if before else []
    conversation = before + read_input(body.get("input"), context.images, call_ids)
    instructions = read_field(body, "instructions", str, None)
    system = () if instructions is None else (message("system", instructions),)
    echo = {name: body.get(name) for name in ("instructions", "metadata", "previous_response_id", "max_output_tokens")}
    echo |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "tools": body.get("tools") or []}
    echo |= {"tool_choice": body.get("tool_choice") or "auto", "text": body.get("text") or {"format": {"type": "text"}}}
    validation.check_encodable(json.dumps(echo, ensure_ascii=False), "metadata")
    request = ChatRequest(system + conversation, sampling, 1, tools)
    return ResponsesBody(
        request, conversation, read_field(body, "stream", bool, False), read_field(body, "store", bool, True), echo
    )


def _read_tool(tool: Any, where: str) -> validation.Tool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise unsupported(where, "tools must have type function")
    reject_unknown_fields(tool, ("type", "name", "description", "parameters"), {"strict": (False,)}, f"{where}.")
    return validation.tool_definition(tool.get("name"), tool.get("description"), tool.get("parameters"), where)


def _read_grammar(body: Mapping[str, Any], features: Collection[str]) -> Grammar | None:
    text = body.get("text")
    if text is None:
        return None
    if not isinstance(text, Mapping):
        raise invalid("text", 'text must be {"format": {...}}')
    reject_unknown_fields(text, ("format",), {}, "text.")
    form = text.get("format")
    if form is None or form == {"type": "text"}:
        return None
    if not isinstance(form, Mapping):
        raise invalid("text.format", "text.format must be an object")
    kind = form.get("type")
    if kind == "json_object":
        return validation.schema_grammar({"type": "object"}, features, "text.format")
    if kind == "json_schema" and not set(form) - {"type", "name", "description", "schema", "strict"}:
        return validation.schema_grammar(form.get("schema"), features, "text.format")
    raise unsupported("text.format", "its type must be text, json_object, or json_schema with a schema")


def call_id_of(response_id: str, number: int) -> str:
    """Return the id of a function call of a response."""
    return f"call_{response_id}_{number}"


def read_input(items: Any, images: ImageStore, call_ids: list[str] | None = None) -> tuple[Message, ...]:
    """Return the messages of an input; `call_ids` are open calls before it. Raises `InvalidRequestError`."""
    if isinstance(items, str):
        return (message("user", validation.check_encodable(items, "input")),)
    read = partial(_read_part, images)
    turns = list[tuple[Role, list[Part], list[ToolCall]]]()
    open_ids, order = call_ids or [], validation.ToolCallOrder()
    order.expect(open_ids)
    for index, item in enumerate(validation.as_list(items, "input")):
        where = f"input[{index}]"
        if not isinstance(item, Mapping):
            raise invalid(where, "an item of input must be an object")
        kind = item.get("type", "message" if "role" in item else None)
        starts_reply = kind == "function_call" and not (turns and turns[-1][0] == "assistant")
        if kind == "message":
            reject_unknown_fields(item, ("role", "content", *_ITEM), {"phase": ()}, f"{where}.")
            role = item.get("role")
            if not isinstance(role, str) or role not in _ROLES:
                raise invalid(f"{where}.role", "role must be user, assistant, system or developer")
            turns.append((_ROLES[role], read_parts(item.get("content"), f"{where}.content", read), []))
            starts_reply = role == "assistant"
        elif starts_reply:
            turns.append(("assistant", [], []))
        if starts_reply:
            open_ids = list[str]()
            order.expect(open_ids)
        if kind == "function_call":
            reject_unknown_fields(item, ("call_id", "name", "arguments", *_ITEM), {}, f"{where}.")
            turns[-1][2].append(validation.tool_call(item.get("name"), item.get("arguments"), where))
            open_ids.append(read_field(item, "call_id", str, "", f"{where}."))
        elif kind == "function_call_output":
            reject_unknown_fields(item, ("call_id", "output", *_ITEM), {}, f"{where}.")
            order.check_result(read_field(item, "call_id", str, "", f"{where}."), f"{where}.call_id")
            turns.append(("tool", read_parts(item.get("output"), f"{where}.output", read), []))
        elif kind not in ("message", "reasoning"):
            raise unsupported(where, f"items of type {str(kind)[:40]!r} are not supported")
    return tuple(message(role, parts, tuple(calls)) for role, parts, calls in turns)


def _read_part(images: ImageStore, part: Any, where: str) -> Part:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("input_text", "output_text") and isinstance(part.get("text"), str):
        reject_unknown_fields(part, ("type", "text"), {"annotations": ([],), "logprobs": ([],)}, f"{where}.")
        return validation.check_encodable(part["text"], where)
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        reject_unknown_fields(part, ("type", "image_url", "detail"), {}, f"{where}.")
        return read_image(part["image_url"], part.get("detail"), images, where, f"{where}.image_url")
    raise unsupported(where, f"parts of type {str(kind)[:40]!r} are not supported here")


def reply_body(reply: Reply, body: ResponsesBody, context: ApiContext) -> dict[str, Any]:
    """Return the `response` object."""
    whole = reply.calls[0].completion.finish_reason == "stop"
    counted = usage(reply)
    return {
        "id": reply.id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed" if whole else "incomplete",
        "error": None,
        "incomplete_details": None if whole else {"reason": "max_output_tokens"},
        "model": context.model,
        "output": _items(reply, "completed" if whole else "incomplete"),
        "parallel_tool_calls": True,
        "store": body.store,
        "truncation": "disabled",
        "usage": {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0} if reply.parsed[0].thinking is None else None,
            "total_tokens": counted["total_tokens"],
        },
        **body.echo,
    }


def _items(reply: Reply, status: str) -> list[dict[str, Any]]:
    call, parsed = reply.calls[0], reply.parsed[0]
    items: list[dict[str, Any]] = []
    if parsed.thinking is not None:
        thought = [{"type": "reasoning_text", "text": parsed.thinking}]
        items.append({"id": f"rs_{call.id}", "type": "reasoning", "summary": [], "content": thought, "status": status})
    if parsed.text or not (parsed.calls or items):
        text = {"type": "output_text", "text": parsed.text, "annotations": []}
        items.append(
            {"id": f"msg_{call.id}", "type": "message", "role": "assistant", "status": status, "content": [text]}
        )
    for number, one in enumerate(parsed.calls):
        items.append(
            {
                "id": f"fc_{call.id}_{number}",
                "type": "function_call",
                "call_id": call_id_of(call.id, number),
                "name": one.name,
                "arguments": one.arguments,
                "status": status,
            }
        )
    return items


def stream_events(reply: Reply, body: ResponsesBody, context: ApiContext) -> Iterator[str]:
    """Yield the reply as OpenAI's typed server-sent events."""
    for number, (kind, data) in enumerate(_events(reply_body(reply, body, context))):
        line = json.dumps({"type": kind, "sequence_number": number, **data}, ensure_ascii=False, separators=(",", ":"))
        yield f"event: {kind}\ndata: {line}\n\n"


def _events(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    started = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {**item, "status": "in_progress"}
        empty |= {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        yield "response.output_item.added", {"output_index": index, "item": empty}
        if item["type"] == "function_call":
            for piece in pieces(item["arguments"]):
                yield "response.function_call_arguments.delta", {**at, "delta": piece}
            yield "response.function_call_arguments.done", {**at, "arguments": item["arguments"], "name": item["name"]}
        else:
            yield from _part_events(item["content"][0], {**at, "content_index": 0})
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{whole['status']}", {"response": whole}


def _part_events(part: dict[str, Any], at: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = part["type"]
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    more = {"logprobs": []} if kind == "output_text" else {}
    for piece in pieces(part["text"]):
        yield f"response.{kind}.delta", {**at, **more, "delta": piece}
    yield f"response.{kind}.done", {**at, **more, "text": part["text"]}
    yield "response.content_part.done", {**at, "part": part}
